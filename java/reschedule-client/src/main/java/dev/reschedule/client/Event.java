package dev.reschedule.client;

import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.util.Arrays;
import java.util.Locale;
import java.util.Map;
import java.util.Objects;

/** The event that a key's delivery carries, as far as a caller set it: attributes of a CloudEvent, and data. */
public final class Event {

  /** The event without attributes and data: the source fills in its type and subject. */
  public static final Event EMPTY = new Event(null, null, null, null, null, Map.of(), null, null, null);

  private final String type;
  private final String subject;
  private final String dataContentType;
  private final String dataSchema;
  private final byte[] data;
  private final Map<String, Object> extensions;
  private final String id;
  private final String source;
  private final Instant time;

  Event(
      String type,
      String subject,
      String dataContentType,
      String dataSchema,
      byte[] data,
      Map<String, Object> extensions,
      String id,
      String source,
      Instant time) {
    this.type = type;
    this.subject = subject;
    this.dataContentType = dataContentType;
    this.dataSchema = dataSchema;
    this.data = data;
    this.extensions = Map.copyOf(extensions);
    this.id = id;
    this.source = source;
    this.time = time;
  }

  /** Returns an event of a type. */
  public static Event ofType(String type) {
    return EMPTY.withType(type);
  }

  /** Returns this event with a type; the source's default is {@code dev.reschedule.due}. */
  public Event withType(String t) {
    return new Event(t, subject, dataContentType, dataSchema, data, extensions, id, source, time);
  }

  /** Returns this event with a subject; the source's default is the key. */
  public Event withSubject(String s) {
    return new Event(type, s, dataContentType, dataSchema, data, extensions, id, source, time);
  }

  /** Returns this event with JSON as its data. It is delivered byte for byte. */
  public Event withJson(String json) {
    Json.read(json.getBytes(StandardCharsets.UTF_8), "event.data");
    return new Event(
        type, subject, null, dataSchema, json.getBytes(StandardCharsets.UTF_8), extensions, id, source, time);
  }

  /** Returns this event with data of a media type. It is delivered byte for byte. */
  public Event withData(String contentType, byte[] bytes) {
    if (isJson(contentType)) {
      Json.read(bytes, "event.data");
    }
    return new Event(type, subject, contentType, dataSchema, bytes.clone(), extensions, id, source, time);
  }

  /** Returns this event with the schema of its data, an absolute URI. */
  public Event withDataSchema(String uri) {
    return new Event(type, subject, dataContentType, uri, data, extensions, id, source, time);
  }

  /** Returns this event with an extension attribute: a name of a to z and 0 to 9; a string, a boolean or an int. */
  public Event withExtension(String name, Object value) {
    Map<String, Object> all = new java.util.HashMap<>(extensions);
    all.put(name, value);
    return new Event(type, subject, dataContentType, dataSchema, data, all, id, source, time);
  }

  /** Returns the type, or null. */
  public String type() {
    return type;
  }

  /** Returns the subject, or null. */
  public String subject() {
    return subject;
  }

  /** Returns the media type of the data, or null, which is JSON. */
  public String dataContentType() {
    return dataContentType;
  }

  /** Returns the schema of the data, or null. */
  public String dataSchema() {
    return dataSchema;
  }

  /** Returns a copy of the data, or null. JSON that comes from a source is equal in value, not in its blanks. */
  public byte[] data() {
    return data == null ? null : data.clone();
  }

  /** Returns the data as text, or null. */
  public String text() {
    return data == null ? null : new String(data, StandardCharsets.UTF_8);
  }

  /** Returns the extension attributes. */
  public Map<String, Object> extensions() {
    return extensions;
  }

  /** Returns the id of an event that came in as a CloudEvent, or null. A request cannot set it. */
  public String id() {
    return id;
  }

  /** Returns the source of an event that came in as a CloudEvent, or null. A request cannot set it. */
  public String source() {
    return source;
  }

  /** Returns the time of an event that came in as a CloudEvent, or null. A request cannot set it. */
  public Instant time() {
    return time;
  }

  boolean isJson() {
    return isJson(dataContentType);
  }

  static boolean isJson(String contentType) {
    if (contentType == null || contentType.isEmpty()) {
      return true;
    }
    String media = media(contentType);
    return media.equals("application/json") || media.equals("text/json") || media.endsWith("+json");
  }

  /** Returns the media type of a content type, which is written in any case. */
  static String media(String contentType) {
    return contentType.split(";", 2)[0].trim().toLowerCase(Locale.ROOT);
  }

  @Override
  public boolean equals(Object o) {
    return o instanceof Event e
        && Objects.equals(type, e.type)
        && Objects.equals(subject, e.subject)
        && Objects.equals(dataContentType, e.dataContentType)
        && Objects.equals(dataSchema, e.dataSchema)
        && Arrays.equals(data, e.data)
        && extensions.equals(e.extensions)
        && Objects.equals(id, e.id)
        && Objects.equals(source, e.source)
        && Objects.equals(time, e.time);
  }

  @Override
  public int hashCode() {
    return Objects.hash(type, subject, Arrays.hashCode(data), extensions, id, source);
  }

  @Override
  public String toString() {
    return "Event[type=" + type + ", subject=" + subject + ", extensions=" + extensions + ", data=" + text() + "]";
  }
}
