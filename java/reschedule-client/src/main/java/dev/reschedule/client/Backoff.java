package dev.reschedule.client;

import java.time.Duration;

/**
 * A wait that grows with the key's attempt counter: min(base·factor^(attempt-1), cap). The counter grows by one with
 * every such request. The source counts, so that an operator at zero need not.
 *
 * @param base the first wait; null is the default, 1 s
 * @param factor at least 1; null is the default, 2
 * @param cap the longest wait; null is the default, 1000 s
 * @param maxAttempts the attempts after which the next request is {@link ScheduleException.AttemptsExhausted}, unless
 *     there is a maxInterval, which then sets the time; null or 0 is no limit
 */
public record Backoff(Duration base, Double factor, Duration cap, Integer maxAttempts) {

  /** The back-off of the source: from 1 s, doubled each time, up to 1000 s. */
  public static final Backoff DEFAULT = new Backoff(null, null, null, null);

  /** Returns a back-off that begins with this wait. */
  public static Backoff from(Duration base) {
    return new Backoff(base, null, null, null);
  }
}
