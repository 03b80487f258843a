/** An operator of Spring Boot behind a RescheduleSource. */
package dev.reschedule.examples.springboot;
