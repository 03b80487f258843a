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
 * @param companyUntil until when, at the latest, due keys wait for others, or null
 * @param scale the workload of spec.scale, or null
 */
public record Counts(
    long pending,
    long due,
    long inFlight,
    Instant nextDueAt,
    Instant oldestDueAt,
    long watched,
    long retrying,
    long deadLetters,
    Instant companyUntil,
    Workload scale) {

  /**
   * The workload of spec.scale.
   *
   * @param state Asleep, Starting or Awake, or null until it is known
   * @param since when state began, or null
   * @param starts how often it was woken
   * @param awakeSeconds seconds in which it was not asleep
   * @param observedSeconds seconds in which it was observed
   * @param lastStart how long the last start took, such as 1.3s, or null
   * @param reason why it cannot be scaled, in one word, or null
   * @param message the reason as a sentence, or null
   */
  public record Workload(
      String state,
      Instant since,
      long starts,
      long awakeSeconds,
      long observedSeconds,
      String lastStart,
      String reason,
      String message) {}
}
