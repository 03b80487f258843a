package dev.reschedule.client;

import java.io.ByteArrayOutputStream;
import java.nio.charset.StandardCharsets;
import java.util.Collection;
import java.util.HashMap;
import java.util.Locale;
import java.util.Map;
import java.util.TreeMap;

import com.fasterxml.jackson.databind.JsonNode;

/** A CloudEvent as it travels over HTTP. */
public final class CloudEvent {

  private final Map<String, String> attributes;
  private final byte[] data;

  /**
   * Makes an event.
   *
   * @param attributes all attributes, with specversion, id, source and type
   * @param data the data, or null
   */
  public CloudEvent(Map<String, String> attributes, byte[] data) {
    this.attributes = Map.copyOf(attributes);
    this.data = data == null ? null : data.clone();
    for (String name : new String[] {"specversion", "id", "source", "type"}) {
      if (attribute(name).isEmpty()) {
        throw new IllegalArgumentException("the request is not a CloudEvent: it has no " + name);
      }
    }
  }

  /** Returns an attribute; empty if there is none. */
  public String attribute(String name) {
    return attributes.getOrDefault(name, "");
  }

  /** Returns all attributes. */
  public Map<String, String> attributes() {
    return attributes;
  }

  /** Returns a copy of the data, or null. */
  public byte[] data() {
    return data == null ? null : data.clone();
  }

  /**
   * Reads an event in the binary or the structured mode. An {@link IllegalArgumentException} says that the request is
   * not an event: a repetition would end the same.
   */
  public static CloudEvent read(Map<String, ? extends Collection<String>> headers, byte[] body) {
    Map<String, String> lower = new TreeMap<>();
    headers.forEach(
        (name, values) -> {
          if (name != null && !values.isEmpty()) {
            lower.put(name.toLowerCase(Locale.ROOT), values.iterator().next());
          }
        });
    String contentType = lower.getOrDefault("content-type", "");
    return Event.media(contentType).equals("application/cloudevents+json")
        ? structured(body)
        : binary(lower, contentType, body);
  }

  private static CloudEvent structured(byte[] body) {
    JsonNode o = Json.read(body, "the event");
    Map<String, String> attributes = new HashMap<>();
    o.properties()
        .forEach(
            f -> {
              if (f.getValue().isValueNode() && !f.getValue().isNull() && !f.getKey().startsWith("data_")
                  && !f.getKey().equals("data")) {
                attributes.put(f.getKey(), f.getValue().asText());
              }
            });
    return new CloudEvent(attributes, Json.readData(o, Event.isJson(attributes.get("datacontenttype"))));
  }

  private static CloudEvent binary(Map<String, String> headers, String contentType, byte[] body) {
    Map<String, String> attributes = new HashMap<>();
    headers.forEach(
        (name, value) -> {
          if (name.startsWith("ce-")) {
            attributes.put(name.substring(3), decode(value));
          }
        });
    if (!contentType.isEmpty()) {
      attributes.put("datacontenttype", contentType);
    }
    return new CloudEvent(attributes, body == null || body.length == 0 ? null : body);
  }

  /** Returns the headers of the binary mode. The body is the data. */
  public Map<String, String> headers() {
    Map<String, String> headers = new TreeMap<>();
    attributes.forEach(
        (name, value) -> {
          if (name.equals("datacontenttype")) {
            headers.put("Content-Type", value);
          } else {
            headers.put("Ce-" + Character.toUpperCase(name.charAt(0)) + name.substring(1), encode(value));
          }
        });
    return headers;
  }

  /** Percent-decoding as the HTTP binding has it, where a plus is a plus. */
  private static String decode(String s) {
    if (s.indexOf('%') < 0) {
      return s;
    }
    var out = new ByteArrayOutputStream();
    byte[] in = s.getBytes(StandardCharsets.UTF_8);
    for (int i = 0; i < in.length; i++) {
      int high = i + 2 < in.length && in[i] == '%' ? Character.digit(in[i + 1], 16) : -1;
      int low = high >= 0 ? Character.digit(in[i + 2], 16) : -1;
      if (low >= 0) {
        out.write(high * 16 + low);
        i += 2;
      } else {
        out.write(in[i]);
      }
    }
    return out.toString(StandardCharsets.UTF_8);
  }

  private static String encode(String s) {
    if (!StandardCharsets.UTF_8.newEncoder().canEncode(s)) {
      throw new IllegalArgumentException("an attribute has one half of a surrogate pair: it is no text");
    }
    StringBuilder b = new StringBuilder();
    for (byte c : s.getBytes(StandardCharsets.UTF_8)) {
      if (c <= ' ' || c >= 127 || c == '%' || c == '"') {
        b.append(String.format("%%%02X", c & 0xff));
      } else {
        b.append((char) c);
      }
    }
    return b.toString();
  }

  @Override
  public String toString() {
    return "CloudEvent" + attributes;
  }
}
