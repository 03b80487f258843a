/**
 * Runs an operator of the Java Operator SDK from zero, behind a RescheduleSource: {@link
 * dev.reschedule.josdk.RescheduleOperator} takes the place of {@code Operator}.
 */
package dev.reschedule.josdk;
