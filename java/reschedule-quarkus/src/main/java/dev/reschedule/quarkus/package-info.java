/** An operator of quarkus-operator-sdk that deliveries of a RescheduleSource wake. */
package dev.reschedule.quarkus;
