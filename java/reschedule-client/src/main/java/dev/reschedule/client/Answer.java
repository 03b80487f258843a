package dev.reschedule.client;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.Map;
import java.util.TreeMap;

/**
 * The answer to a delivery. It is the outcome of the key.
 *
 * @param status the HTTP status
 * @param headers the headers
 * @param body the body, which may be empty
 */
public record Answer(int status, Map<String, String> headers, byte[] body) {

  private static final String AFTER = "Reschedule-After";

  /** The longest wait that a source takes: 100 years. */
  private static final Duration MAX_WAIT = Duration.ofHours(876_600);

  private static final byte[] EMPTY = {};

  /** Copies the headers and the body. */
  public Answer {
    headers = Map.copyOf(headers);
    body = body.clone();
  }

  /** Returns a copy of the body. */
  @Override
  public byte[] body() {
    return body.clone();
  }

  /** Returns the body as text. */
  public String text() {
    return new String(body, StandardCharsets.UTF_8);
  }

  @Override
  public boolean equals(Object other) {
    return other instanceof Answer a && status == a.status && headers.equals(a.headers) && Arrays.equals(body, a.body);
  }

  @Override
  public int hashCode() {
    return Arrays.hashCode(body) + 31 * headers.hashCode() + status;
  }

  @Override
  public String toString() {
    return "Answer[status=" + status + ", headers=" + headers + ", body=" + text() + "]";
  }

  /** Done. The key comes back after its maxInterval, if it has one. */
  public static Answer done() {
    return new Answer(204, Map.of(), EMPTY);
  }

  /** Done, and the object of the key is gone: nothing brings it back. */
  public static Answer never() {
    return new Answer(204, Map.of(AFTER, "never"), EMPTY);
  }

  /** Done, and the key is due again after a time, with the same event. Below zero is now, and 100 years the longest. */
  public static Answer again(Duration after) {
    return new Answer(200, Map.of(AFTER, millis(after)), EMPTY);
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
    return new Answer(200, headers, event.data() == null ? EMPTY : event.data());
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
    return new Answer(status, Map.of("Content-Type", "text/plain; charset=utf-8"), text.getBytes(StandardCharsets.UTF_8));
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
    if (d.isNegative()) {
      return "0ms";
    }
    return (d.compareTo(MAX_WAIT) >= 0 ? MAX_WAIT : d.plusNanos(999_999)).toMillis() + "ms";
  }
}
