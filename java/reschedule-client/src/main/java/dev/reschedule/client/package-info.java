/**
 * The schedule API of a RescheduleSource: ask for a key to become due ({@link dev.reschedule.client.Schedules}),
 * read the delivery that it leads to ({@link dev.reschedule.client.Delivery}), and answer it
 * ({@link dev.reschedule.client.Answer}).
 *
 * <p>All values are immutable, and {@code null} means that a field is absent.
 */
package dev.reschedule.client;
