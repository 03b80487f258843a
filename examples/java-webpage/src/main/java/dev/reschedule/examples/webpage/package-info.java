/** An operator of web pages, which runs resident or at zero. */
package dev.reschedule.examples.webpage;
