package dev.reschedule.client;

import java.time.Instant;
import java.time.OffsetDateTime;
import java.time.format.DateTimeParseException;
import java.util.Collection;
import java.util.Map;

/**
 * One attempt to wake a sink. A repeat has the same source and id.
 *
 * @param key the key
 * @param revision a condition for calls that this delivery leads to
 * @param dueAt when it was due, the same over all attempts
 * @param attempt how many runs in a row failed before: 0 is the first
 * @param event the event
 */
public record Delivery(String key, long revision, Instant dueAt, int attempt, CloudEvent event) {

  /**
   * Reads a request of a RescheduleSource. An {@link IllegalArgumentException} says that it is not a delivery: answer it
   * with {@link Answer#refuse}.
   */
  public static Delivery read(Map<String, ? extends Collection<String>> headers, byte[] body) {
    CloudEvent e = CloudEvent.read(headers, body);
    String key = e.attribute("reschedulekey");
    if (key.isEmpty()) {
      throw new IllegalArgumentException("the event has no reschedulekey: send events to the address of a"
          + " RescheduleSource whose sink is this program");
    }
    try {
      String due = e.attribute("rescheduledueat");
      String revision = e.attribute("reschedulerevision");
      String attempt = e.attribute("rescheduleattempt");
      return new Delivery(
          key,
          revision.isEmpty() ? 0 : Long.parseUnsignedLong(revision),
          due.isEmpty() ? null : OffsetDateTime.parse(due).toInstant(),
          attempt.isEmpty() ? 0 : Integer.parseInt(attempt),
          e);
    } catch (NumberFormatException | DateTimeParseException e2) {
      throw new IllegalArgumentException("an attribute of the delivery cannot be read: " + e2.getMessage(), e2);
    }
  }
}
