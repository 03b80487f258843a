/** What the tests of several modules start: the real adapter, and a real API server with this project installed. */
package dev.reschedule.testing;
