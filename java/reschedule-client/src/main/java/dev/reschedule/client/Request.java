package dev.reschedule.client;

import java.time.Duration;
import java.time.Instant;
import java.util.Objects;

/**
 * When a key becomes due, and with which event. Begin with {@link #now}, {@link #after}, {@link #at}, {@link #backingOff}
 * or {@link #usual}, and add what else is wanted.
 *
 * @param delay how long from now
 * @param dueAt when; an instant in the past is now
 * @param backoff lets the source compute the wait
 * @param policy what decides when the key waits already; null is the source's conflictPolicy
 * @param jitter from 0 to 1: adds up to that share of the delay
 * @param event what is delivered; null is the event that the key has
 * @param maxInterval the time after which the key is due again when a run succeeded and asked for nothing; zero is never,
 *     null is the source's
 * @param slack for how long the key, once it is due, may wait to be delivered together with others; zero is not at all,
 *     null is the source's
 * @param expiresAt the instant from which it is not delivered any more, retries included
 * @param uid the object's. Another uid than the stored one replaces the occurrence under every policy
 * @param reason a short text for people
 */
public record Request(
    Duration delay,
    Instant dueAt,
    Backoff backoff,
    Policy policy,
    Double jitter,
    Event event,
    Duration maxInterval,
    Duration slack,
    Instant expiresAt,
    String uid,
    String reason) {

  /** Checks that at most one of delay, dueAt and backoff is set. */
  public Request {
    int times = (delay != null ? 1 : 0) + (dueAt != null ? 1 : 0) + (backoff != null ? 1 : 0);
    if (times > 1) {
      throw new IllegalArgumentException("give one of delay, dueAt and backoff");
    }
  }

  /** Asks for the source's own delay, spec.delay. */
  public static Request usual() {
    return new Request(null, null, null, null, null, null, null, null, null, null, null);
  }

  /** Asks for a delivery at once. */
  public static Request now() {
    return after(Duration.ZERO);
  }

  /** Asks for a delivery after a time, or at once when it is not above zero. */
  public static Request after(Duration delay) {
    return timed(delay.isNegative() ? Duration.ZERO : delay, null, null);
  }

  /** Asks for a delivery at an instant, or at once when it is past. */
  public static Request at(Instant dueAt) {
    return timed(null, Objects.requireNonNull(dueAt), null);
  }

  /** Asks for a delivery after a wait that the source computes. */
  public static Request backingOff(Backoff backoff) {
    return timed(null, null, Objects.requireNonNull(backoff));
  }

  private static Request timed(Duration delay, Instant dueAt, Backoff backoff) {
    return new Request(delay, dueAt, backoff, null, null, null, null, null, null, null, null);
  }

  /** Returns this request with a policy. */
  public Request withPolicy(Policy p) {
    return new Request(delay, dueAt, backoff, p, jitter, event, maxInterval, slack, expiresAt, uid, reason);
  }

  /** Returns this request with a jitter. */
  public Request withJitter(double share) {
    return new Request(delay, dueAt, backoff, policy, share, event, maxInterval, slack, expiresAt, uid, reason);
  }

  /** Returns this request with an event. */
  public Request withEvent(Event e) {
    return new Request(delay, dueAt, backoff, policy, jitter, e, maxInterval, slack, expiresAt, uid, reason);
  }

  /** Returns this request with a maxInterval. */
  public Request withMaxInterval(Duration max) {
    return new Request(delay, dueAt, backoff, policy, jitter, event, max, slack, expiresAt, uid, reason);
  }

  /** Returns this request with a slack. */
  public Request withSlack(Duration wait) {
    return new Request(delay, dueAt, backoff, policy, jitter, event, maxInterval, wait, expiresAt, uid, reason);
  }

  /** Returns this request with an end. */
  public Request withExpiresAt(Instant end) {
    return new Request(delay, dueAt, backoff, policy, jitter, event, maxInterval, slack, end, uid, reason);
  }

  /** Returns this request with the uid of the object. */
  public Request withUid(String id) {
    return new Request(delay, dueAt, backoff, policy, jitter, event, maxInterval, slack, expiresAt, id, reason);
  }

  /** Returns this request with a reason. */
  public Request withReason(String text) {
    return new Request(delay, dueAt, backoff, policy, jitter, event, maxInterval, slack, expiresAt, uid, text);
  }

  /** Reports whether the request has the same effect and the same answer when it is made twice. */
  boolean repeatable() {
    return backoff == null && policy != Policy.FAIL;
  }
}
