package dev.reschedule.client;

import java.time.Instant;

/**
 * Something that happens to a key.
 *
 * @param id {@link Schedules#follow(String)} goes on behind it
 * @param kind the kind; null is one that this client does not know
 * @param key the key
 * @param at when it happened
 * @param revision the revision of a key that was scheduled, else 0
 * @param dueAt when a key that was scheduled is due, else null
 * @param attempt the attempt that started or ended, else 0
 * @param result the result of an outcome as in {@link History.PastAttempt}; empty for other kinds
 * @param status the status of the answer of an outcome; 0 if there was none
 * @param missed events before this one are not known any more
 */
public record LiveEvent(
    String id,
    Kind kind,
    String key,
    Instant at,
    long revision,
    Instant dueAt,
    int attempt,
    String result,
    int status,
    boolean missed) {

  /** The kind of an event. */
  public enum Kind {
    /** The key was scheduled. */
    SCHEDULED("scheduled"),

    /** A delivery of the key began. */
    STARTED("started"),

    /** A delivery of the key ended. */
    OUTCOME("outcome");

    private final String wire;

    Kind(String wire) {
      this.wire = wire;
    }

    /** Returns the word that the schedule API has for it. */
    @Override
    public String toString() {
      return wire;
    }
  }
}
