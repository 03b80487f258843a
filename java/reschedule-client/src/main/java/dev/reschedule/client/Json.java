package dev.reschedule.client;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.time.OffsetDateTime;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Function;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.DeserializationFeature;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.cfg.JsonNodeFeature;
import com.fasterxml.jackson.databind.json.JsonMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import com.fasterxml.jackson.databind.util.RawValue;

/**
 * The JSON of the schedule API. Only Jackson's tree is used, with no annotations and no reflection on our classes: that
 * starts quickly, and native images need no configuration.
 */
final class Json {

  private static final JsonMapper MAPPER =
      JsonMapper.builder()
          .enable(DeserializationFeature.FAIL_ON_TRAILING_TOKENS)
          .enable(DeserializationFeature.USE_BIG_DECIMAL_FOR_FLOATS)
          .disable(JsonNodeFeature.STRIP_TRAILING_BIGDECIMAL_ZEROES)
          .build();

  private static final Pattern GO_DURATION = Pattern.compile("(\\d+(?:\\.\\d+)?)(ns|us|µs|ms|s|m|h)");

  private Json() {}

  static ObjectNode object() {
    return MAPPER.createObjectNode();
  }

  /** Reads JSON, and names what it is in the exception. */
  static JsonNode read(byte[] json, String what) {
    JsonNode node;
    try {
      node = MAPPER.readTree(json);
    } catch (IOException e) {
      throw new IllegalArgumentException(what + ": is not JSON: " + e.getMessage(), e);
    }
    if (node == null || node.isMissingNode()) {
      throw new IllegalArgumentException(what + ": is not JSON: it is empty");
    }
    return node;
  }

  static byte[] write(JsonNode node) {
    try {
      return MAPPER.writeValueAsBytes(node);
    } catch (JsonProcessingException e) {
      throw new IllegalArgumentException(e); // a tree can always be written
    }
  }

  // ---- what is asked for

  static ObjectNode request(Request r) {
    ObjectNode o = object();
    put(o, "delay", r.delay());
    put(o, "dueAt", r.dueAt());
    if (r.backoff() != null) {
      ObjectNode b = o.putObject("backoff");
      put(b, "base", r.backoff().base());
      if (r.backoff().factor() != null) {
        b.put("factor", r.backoff().factor());
      }
      put(b, "cap", r.backoff().cap());
      if (r.backoff().maxAttempts() != null) {
        b.put("maxAttempts", r.backoff().maxAttempts());
      }
    }
    put(o, "policy", r.policy());
    if (r.jitter() != null) {
      o.put("jitter", r.jitter());
    }
    if (r.event() != null) {
      o.set("event", event(r.event()));
    }
    put(o, "maxInterval", r.maxInterval());
    put(o, "slack", r.slack());
    put(o, "expiresAt", r.expiresAt());
    put(o, "uid", r.uid());
    put(o, "reason", r.reason());
    return o;
  }

  static ObjectNode event(Event e) {
    ObjectNode o = object();
    e.extensions()
        .forEach(
            (name, value) -> {
              if (value instanceof Boolean b) {
                o.put(name, b);
              } else if (value instanceof Integer i) {
                o.put(name, i);
              } else if (value instanceof String s) {
                o.put(name, s);
              } else {
                throw new IllegalArgumentException(
                    "event." + name + ": an extension is a String, a Boolean or an Integer");
              }
            });
    put(o, "id", e.id());
    put(o, "source", e.source());
    put(o, "time", e.time());
    put(o, "type", e.type());
    put(o, "subject", e.subject());
    put(o, "datacontenttype", e.dataContentType());
    put(o, "dataschema", e.dataSchema());
    putData(o, e.data(), e.isJson());
    return o;
  }

  /** Adds data as JSON, as text, or as bytes. */
  static void putData(ObjectNode o, byte[] data, boolean isJson) {
    if (data == null) {
      return;
    }
    String text = text(data);
    if (text == null) {
      o.put("data_base64", Base64.getEncoder().encodeToString(data));
    } else if (isJson) {
      o.putRawValue("data", new RawValue(text));
    } else {
      o.put("data", text);
    }
  }

  private static String text(byte[] data) {
    try {
      return StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(data)).toString();
    } catch (CharacterCodingException e) {
      return null;
    }
  }

  private static void put(ObjectNode o, String name, Object value) {
    if (value != null) {
      o.put(name, value.toString()); // Duration and Instant write themselves in ISO 8601
    }
  }

  // ---- what is answered

  static Schedule schedule(JsonNode o) {
    return new Schedule(
        required(o, "key").asText(),
        required(o, "revision").asLong(),
        word(Result.values(), text(o, "result")),
        word(State.values(), required(o, "state").asText()),
        instant(o, "dueAt"),
        instant(o, "previousDueAt"),
        instant(o, "scheduledAt"),
        o.path("attempt").asInt(),
        instant(o, "nextAttemptAt"),
        o.path("tries").asInt(),
        o.hasNonNull("lastFailure") ? failure(o.get("lastFailure")) : null,
        o.path("inFlight").asBoolean(),
        text(o, "uid"),
        text(o, "reason"),
        map(o, "maxInterval", Json::duration),
        map(o, "slack", Json::duration),
        instant(o, "expiresAt"),
        o.hasNonNull("event") ? readEvent(o.get("event")) : null);
  }

  private static Schedule.Failure failure(JsonNode o) {
    return new Schedule.Failure(
        instant(o, "at"), o.path("status").asInt(), o.path("error").asText(""), o.path("detail").asText(""));
  }

  static Counts counts(JsonNode o) {
    return new Counts(
        required(o, "pending").asLong(),
        o.path("due").asLong(),
        o.path("inFlight").asLong(),
        instant(o, "nextDueAt"),
        instant(o, "oldestDueAt"),
        o.path("watched").asLong(),
        o.path("retrying").asLong(),
        o.path("deadLetters").asLong(),
        instant(o, "companyUntil"),
        o.hasNonNull("scale") ? workload(o.get("scale")) : null);
  }

  private static Counts.Workload workload(JsonNode o) {
    return new Counts.Workload(
        text(o, "state"),
        instant(o, "since"),
        o.path("starts").asLong(),
        o.path("awakeSeconds").asLong(),
        o.path("observedSeconds").asLong(),
        text(o, "lastStart"),
        text(o, "reason"),
        text(o, "message"));
  }

  static DeadLetter deadLetter(JsonNode o) {
    return new DeadLetter(
        required(o, "key").asText(),
        instant(o, "at"),
        instant(o, "dueAt"),
        o.path("attempts").asInt(),
        o.path("status").asInt(),
        o.path("error").asText(""),
        o.path("detail").asText(""),
        o.hasNonNull("event") ? readEvent(o.get("event")) : null);
  }

  static History history(JsonNode o) {
    List<History.PastAttempt> items = new ArrayList<>();
    for (JsonNode i : required(o, "items")) {
      items.add(
          new History.PastAttempt(
              instant(i, "at"),
              required(i, "result").asText(),
              i.path("status").asInt(),
              i.path("attempt").asInt(),
              map(i, "lateness", Json::duration),
              map(i, "duration", Json::duration),
              i.path("cause").asText("")));
    }
    return new History(List.copyOf(items), instant(o, "since"));
  }

  static LiveEvent liveEvent(JsonNode o, String id, String kind, boolean missed) {
    return new LiveEvent(
        id,
        word(LiveEvent.Kind.values(), kind),
        required(o, "key").asText(),
        instant(o, "at"),
        o.path("revision").asLong(),
        instant(o, "dueAt"),
        o.path("attempt").asInt(),
        o.path("result").asText(""),
        o.path("status").asInt(),
        missed);
  }

  private static Event readEvent(JsonNode o) {
    Map<String, Object> extensions = new HashMap<>();
    o.properties()
        .forEach(
            f -> {
              JsonNode v = f.getValue();
              switch (f.getKey()) {
                case "id", "source", "time", "type", "subject", "datacontenttype", "dataschema", "data", "data_base64" -> {}
                default -> {
                  if (v.isBoolean()) {
                    extensions.put(f.getKey(), v.asBoolean());
                  } else if (v.isIntegralNumber() && v.canConvertToInt()) {
                    extensions.put(f.getKey(), v.asInt());
                  } else if (!v.isNull()) {
                    extensions.put(f.getKey(), v.asText());
                  }
                }
              }
            });
    String contentType = text(o, "datacontenttype");
    return new Event(
        text(o, "type"),
        text(o, "subject"),
        contentType,
        text(o, "dataschema"),
        readData(o, Event.isJson(contentType)),
        extensions,
        text(o, "id"),
        text(o, "source"),
        instant(o, "time"));
  }

  static byte[] readData(JsonNode o, boolean isJson) {
    if (o.hasNonNull("data_base64")) {
      return Base64.getDecoder().decode(o.get("data_base64").asText());
    }
    JsonNode data = o.get("data");
    if (data == null || data.isNull()) {
      return null;
    }
    return !isJson && data.isTextual() ? data.asText().getBytes(StandardCharsets.UTF_8) : write(data);
  }

  static JsonNode required(JsonNode o, String name) {
    JsonNode v = o.get(name);
    if (v == null || v.isNull()) {
      throw new IllegalArgumentException("it has no " + name);
    }
    return v;
  }

  static String text(JsonNode o, String name) {
    return map(o, name, s -> s);
  }

  private static Instant instant(JsonNode o, String name) {
    return map(o, name, s -> OffsetDateTime.parse(s).toInstant());
  }

  private static <T> T map(JsonNode o, String name, Function<String, T> read) {
    return o.hasNonNull(name) ? read.apply(o.get(name).asText()) : null;
  }

  /** A word that a newer source may have and this client does not know is null. */
  private static <T> T word(T[] all, String wire) {
    for (T t : all) {
      if (t.toString().equals(wire)) {
        return t;
      }
    }
    return null;
  }

  /** Reads 1h30m0.5s, as a source writes it, and ISO 8601. */
  static Duration duration(String s) {
    if (s.startsWith("P")) {
      return Duration.parse(s);
    }
    Duration sum = Duration.ZERO;
    Matcher m = GO_DURATION.matcher(s);
    int end = 0;
    for (; m.find() && m.start() == end; end = m.end()) {
      long unit =
          switch (m.group(2)) {
            case "h" -> 3_600_000_000_000L;
            case "m" -> 60_000_000_000L;
            case "s" -> 1_000_000_000L;
            case "ms" -> 1_000_000L;
            case "ns" -> 1L;
            default -> 1_000L;
          };
      var nanos = new java.math.BigDecimal(m.group(1)).multiply(java.math.BigDecimal.valueOf(unit)).toBigInteger();
      var parts = nanos.divideAndRemainder(java.math.BigInteger.valueOf(1_000_000_000L));
      sum = sum.plusSeconds(parts[0].longValueExact()).plusNanos(parts[1].longValueExact());
    }
    if (s.isEmpty() || end != s.length() && !s.equals("0")) {
      throw new IllegalArgumentException("not a duration: " + s);
    }
    return sum;
  }
}
