package dev.reschedule.client;

import java.time.Instant;

/**
 * An event that was given up, and that the source keeps.
 *
 * @param key the key
 * @param at when it was given up
 * @param dueAt when it was due
 * @param attempts how often it was tried
 * @param status the status of the last answer; 0 if there was none
 * @param error why there was no answer; empty if there was one
 * @param detail the beginning of the last answer
 * @param event the event
 */
public record DeadLetter(
    String key, Instant at, Instant dueAt, int attempts, int status, String error, String detail, Event event) {}
