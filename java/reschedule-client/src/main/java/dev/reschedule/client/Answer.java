package dev.reschedule.client;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Map;
import java.util.TreeMap;

/**
 * The answer to a delivery. It is the outcome of the key.
 *
 * @param status the HTTP status
 * @param headers the headers
 * @param body the body, which may be empty
 */
public record Answer(int status, Map<String, String> headers, String body) {

  private static final String AFTER = "Reschedule-After";

  /** Copies the headers. */
  public Answer {
    headers = Map.copyOf(headers);
  }

  /** Done. The key comes back after its maxInterval, if it has one. */
  public static Answer done() {
    return new Answer(204, Map.of(), "");
  }

  /** Done, and the object of the key is gone: nothing brings it back. */
  public static Answer never() {
    return new Answer(204, Map.of(AFTER, "never"), "");
  }

  /** Done, and the key is due again after a time, with the same event. */
  public static Answer again(Duration after) {
    return new Answer(200, Map.of(AFTER, millis(after)), "");
  }

  /**
   * Done, and the key is due again after a time, with another event.
   *
   * @param event its rescheduleafter is set here
   */
  public static Answer again(Duration after, CloudEvent event) {
    Map<String, String> attributes = new TreeMap<>(event.attributes());
    // Without it the source keeps the event that it has.
    attributes.put("rescheduleafter", millis(after));
    Map<String, String> headers = new TreeMap<>(new CloudEvent(attributes, event.data()).headers());
    headers.put(AFTER, millis(after));
    return new Answer(200, headers, event.data() == null ? "" : new String(event.data(), StandardCharsets.UTF_8));
  }

  /** Failed: the source tries again after its back-off. */
  public static Answer retry(String reason) {
    return text(503, reason);
  }

  /** Refused: no repetition can succeed. The event becomes a dead letter. */
  public static Answer refuse(String reason) {
    return text(400, reason);
  }

  /** An answer with a text. */
  public static Answer text(int status, String text) {
    return new Answer(status, Map.of("Content-Type", "text/plain; charset=utf-8"), text);
  }

  /**
   * Returns this answer with a time. What failed is tried again then, in the place of the back-off, and that counts as
   * an attempt. The key of what was refused is due again then, as a new occurrence with attempt 0.
   */
  public Answer after(Duration time) {
    return with(AFTER, millis(time));
  }

  /** Returns this answer with another header. */
  public Answer with(String header, String value) {
    Map<String, String> all = new TreeMap<>(headers);
    all.put(header, value);
    return new Answer(status, all, body);
  }

  /** Rounds up, so that nothing is early. */
  private static String millis(Duration d) {
    return Math.max(0, d.plusNanos(999_999).toMillis()) + "ms";
  }
}
