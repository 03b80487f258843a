package dev.reschedule.client;

import java.time.Duration;
import java.time.Instant;
import java.util.List;

/**
 * The last outcomes of a key that the source still knows, newest first.
 *
 * @param items the outcomes
 * @param since none after it is missing
 */
public record History(List<PastAttempt> items, Instant since) {

  /**
   * The end of an attempt to deliver a key.
   *
   * @param at when it ended
   * @param result delivered, retrying, dead_lettered, kept, dropped, expired, superseded or aborted; a source may have more
   * @param status the status of the answer; 0 if there was none
   * @param attempt how many runs in a row had failed before
   * @param lateness how long after its time it began
   * @param duration how long it took
   * @param cause the object whose change woke the key; empty if there was none
   */
  public record PastAttempt(
      Instant at, String result, int status, int attempt, Duration lateness, Duration duration, String cause) {}
}
