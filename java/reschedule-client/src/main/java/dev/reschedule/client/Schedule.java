package dev.reschedule.client;

import java.time.Duration;
import java.time.Instant;

/**
 * The state of a key at the source.
 *
 * @param key the key
 * @param revision grows with every accepted change and is never used again for the key; it is in the delivery too
 * @param result the result of the request that this answers, else null
 * @param state the state
 * @param dueAt when it is due; retries do not move it
 * @param previousDueAt when it was due before its time was last changed or confirmed; null of a new occurrence
 * @param scheduledAt when the newest change was accepted
 * @param attempt how many runs in a row failed
 * @param nextAttemptAt when the next attempt begins; null unless the key is between two attempts
 * @param tries attempts of this occurrence so far
 * @param lastFailure the last failed attempt of this occurrence, or null
 * @param inFlight whether a delivery is in flight, of this or an older occurrence
 * @param uid the uid of the request, or null
 * @param reason the reason of the request, or null
 * @param maxInterval the maxInterval of the request, or null
 * @param slack the slack of the request, or null
 * @param expiresAt the end of the request, or null
 * @param event the event of the key, or null
 */
public record Schedule(
    String key,
    long revision,
    Result result,
    State state,
    Instant dueAt,
    Instant previousDueAt,
    Instant scheduledAt,
    int attempt,
    Instant nextAttemptAt,
    int tries,
    Failure lastFailure,
    boolean inFlight,
    String uid,
    String reason,
    Duration maxInterval,
    Duration slack,
    Instant expiresAt,
    Event event) {

  /**
   * A failed attempt.
   *
   * @param at when it failed
   * @param status the status of the answer; 0 if there was none
   * @param error what failed, in a word or two
   * @param detail the beginning of the answer; empty if there is none
   */
  public record Failure(Instant at, int status, String error, String detail) {}
}
