package dev.reschedule.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.util.List;
import java.util.Map;

import org.junit.jupiter.api.Test;

/** Values in JSON and in headers. */
class JsonTest {

  /** A request has only the fields that were set. */
  @Test
  void requestWritesWhatIsSet() {
    assertEquals("{}", json(Request.usual()));
    assertEquals("{\"delay\":\"PT0S\"}", json(Request.after(Duration.ofSeconds(-3))));
    assertEquals(
        "{\"dueAt\":\"2030-01-01T00:00:00Z\",\"policy\":\"earliest\",\"jitter\":0.5,\"event\":{\"n\":1,\"type\":\"t\",\"data\":{ \"a\" : 1.50 }},"
            + "\"maxInterval\":\"PT1H30M\",\"slack\":\"PT10M\",\"expiresAt\":\"2031-01-01T00:00:00Z\",\"uid\":\"u\",\"reason\":\"r\"}",
        json(
            Request.at(Instant.parse("2030-01-01T00:00:00Z")).withPolicy(Policy.EARLIEST).withJitter(0.5)
                .withEvent(Event.ofType("t").withExtension("n", 1).withJson("{ \"a\" : 1.50 }"))
                .withMaxInterval(Duration.ofMinutes(90)).withSlack(Duration.ofMinutes(10)).withExpiresAt(Instant.parse("2031-01-01T00:00:00Z"))
                .withUid("u").withReason("r")));
    assertEquals(
        "{\"backoff\":{\"base\":\"PT2S\",\"factor\":1.5,\"cap\":\"PT1M\",\"maxAttempts\":4}}",
        json(Request.backingOff(new Backoff(Duration.ofSeconds(2), 1.5, Duration.ofMinutes(1), 4))));
  }

  private static String json(Request r) {
    return new String(Json.write(Json.request(r)), StandardCharsets.UTF_8);
  }

  /** What cannot be asked for is found before the call. */
  @Test
  void mistakesAreFoundEarly() {
    assertThrows(IllegalArgumentException.class, () -> Event.EMPTY.withJson("{} {}"));
    assertThrows(IllegalArgumentException.class, () -> Event.EMPTY.withJson(""));
    assertThrows(IllegalArgumentException.class, () -> Event.EMPTY.withJson("[".repeat(100_000)));
    assertThrows(IllegalArgumentException.class, () -> json(Request.now().withEvent(Event.EMPTY.withExtension("a", 1L))));
    assertThrows(
        IllegalArgumentException.class,
        () -> new Request(Duration.ZERO, Instant.now(), null, null, null, null, null, null, null, null, null));
  }

  /** Counts have the workload of a source that has one. */
  @Test
  void countsHaveTheWorkload() {
    String counts =
        "{\"pending\":3,\"companyUntil\":\"2030-01-01T00:00:00Z\",\"scale\":{\"state\":\"Asleep\",\"starts\":4,\"awakeSeconds\":5,"
            + "\"observedSeconds\":60,\"lastStart\":\"1.3s\"}}";
    Counts got = Json.counts(Json.read(counts.getBytes(StandardCharsets.UTF_8), "counts"));
    assertEquals(Instant.parse("2030-01-01T00:00:00Z"), got.companyUntil());
    assertEquals(new Counts.Workload("Asleep", null, 4, 5, 60, "1.3s", null, null), got.scale());
  }

  /** Durations come as Go writes them. */
  @Test
  void durationsOfGoAreRead() {
    assertEquals(Duration.ofHours(10), Json.duration("10h0m0s"));
    assertEquals(Duration.ofNanos(1_500_001_000L), Json.duration("1.500001s"));
    assertEquals(Duration.ofMillis(2), Json.duration("2ms"));
    assertEquals(Duration.ofNanos(3), Json.duration("3ns"));
    assertEquals(Duration.ofMinutes(5), Json.duration("PT5M"));
    for (String bad : List.of("", "5", "h", "1h-2m", "1x")) {
      assertThrows(RuntimeException.class, () -> Json.duration(bad), bad);
    }
  }

  /** A delivery is the same in both modes of HTTP. */
  @Test
  void deliveryIsReadInBothModes() {
    Delivery binary =
        Delivery.read(
            Map.of("Ce-Specversion", List.of("1.0"), "Ce-Id", List.of("1"), "Ce-Source", List.of("/s"),
                "Ce-Type", List.of("t"), "Ce-Reschedulekey", List.of("%C3%A9%20%zz+"), "Ce-Rescheduleattempt", List.of("2"),
                "Ce-Reschedulerevision", List.of("9"), "Content-Type", List.of("application/json")),
            "{\"a\":1}".getBytes(StandardCharsets.UTF_8));
    Delivery structured =
        Delivery.read(
            Map.of("content-type", List.of("application/cloudevents+json; charset=utf-8")),
            ("{\"specversion\":\"1.0\",\"id\":\"1\",\"source\":\"/s\",\"type\":\"t\",\"reschedulekey\":\"é %zz+\","
                    + "\"rescheduleattempt\":2,\"reschedulerevision\":\"9\",\"data\":{\"a\":1}}")
                .getBytes(StandardCharsets.UTF_8));
    for (Delivery d : List.of(binary, structured)) {
      assertEquals("é %zz+", d.key());
      assertEquals(2, d.attempt());
      assertEquals(9, d.revision());
      assertEquals("{\"a\":1}", new String(d.event().data(), StandardCharsets.UTF_8));
    }
  }

  /** A request that is no delivery says why. */
  @Test
  void whatIsNoDeliveryIsRefused() {
    assertThrows(IllegalArgumentException.class, () -> Delivery.read(Map.of(), new byte[0]));
    assertThrows(
        IllegalArgumentException.class,
        () ->
            Delivery.read(
                Map.of("content-type", List.of("application/cloudevents+json")), "{".getBytes(StandardCharsets.UTF_8)));
    var e =
        assertThrows(
            IllegalArgumentException.class,
            () ->
                Delivery.read(
                    Map.of("ce-specversion", List.of("1.0"), "ce-id", List.of("1"), "ce-source", List.of("s"), "ce-type",
                        List.of("t")),
                    new byte[0]));
    assertEquals(true, e.getMessage().contains("reschedulekey"));
  }

  /** An answer rounds up, and repeats the time in its event. */
  @Test
  void answersRoundUp() {
    assertEquals("1501ms", Answer.again(Duration.ofNanos(1_500_000_001L)).headers().get("Reschedule-After"));
    Answer a =
        Answer.again(
            Duration.ofSeconds(2),
            new CloudEvent(Map.of("specversion", "1.0", "id", "1", "source", "/s", "type", "t"), null));
    assertEquals("2000ms", a.headers().get("Ce-Rescheduleafter"));
    assertEquals("never", Answer.never().headers().get("Reschedule-After"));
  }
}
