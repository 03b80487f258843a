package dev.reschedule.client;

/**
 * The result of one item of a call for many.
 *
 * @param key the key
 * @param schedule the state of the key, or null if the item was refused
 * @param refused the reason if it was refused, else null
 */
public record Outcome(String key, Schedule schedule, ScheduleException refused) {}
