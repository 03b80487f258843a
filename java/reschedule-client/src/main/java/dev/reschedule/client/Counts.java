package dev.reschedule.client;

import java.time.Instant;

/**
 * How much waits at a source.
 *
 * @param pending waiting and due keys
 * @param due the part of pending whose time has come, retries included
 * @param inFlight deliveries under way
 * @param nextDueAt when the next key is due, or null
 * @param oldestDueAt when the key became due that has been due for longest, or null
 * @param watched objects of spec.watch
 * @param retrying the part of due that is between two attempts
 * @param deadLetters events that were given up and are kept
 */
public record Counts(
    long pending,
    long due,
    long inFlight,
    Instant nextDueAt,
    Instant oldestDueAt,
    long watched,
    long retrying,
    long deadLetters) {}
