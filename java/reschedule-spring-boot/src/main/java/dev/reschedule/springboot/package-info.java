/** An operator of a Spring Boot application that deliveries of a RescheduleSource wake. */
package dev.reschedule.springboot;
