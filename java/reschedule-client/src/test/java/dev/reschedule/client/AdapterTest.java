package dev.reschedule.client;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

import com.sun.net.httpserver.HttpServer;

import dev.reschedule.testing.Adapter;

/** The client against the real adapter, over sockets. */
@Timeout(120)
class AdapterTest {

  private static final Instant FAR = Instant.parse("2090-01-02T03:04:05.000000006Z");

  @TempDir static Path dir;
  private static Path tokens;
  private static Adapter adapter;
  private static HttpServer sink;
  private static final BlockingQueue<Delivery> deliveries = new LinkedBlockingQueue<>();

  @BeforeAll
  static void start() throws Exception {
    sink = HttpServer.create(new InetSocketAddress("127.0.0.1", 0), 0);
    sink.createContext(
        "/",
        x -> {
          Delivery d = Delivery.read(x.getRequestHeaders(), x.getRequestBody().readAllBytes());
          deliveries.add(d);
          Answer a =
              d.event().attribute("type").equals("refused")
                  ? Answer.refuse("not this one").after(Duration.ofHours(1))
                  : d.event().attribute("type").equals("failing")
                  ? Answer.retry("not yet").after(Duration.ofHours(1))
                  : d.event().attribute("type").equals("first")
                  ? Answer.again(
                      Duration.ofMillis(200),
                      new CloudEvent(
                          Map.of("specversion", "1.0", "id", "2", "source", "/sink", "type", "second"),
                          "{\"n\":2}".getBytes(StandardCharsets.UTF_8)))
                  : Answer.never();
          a.headers().forEach((name, value) -> x.getResponseHeaders().set(name, value));
          byte[] body = a.body();
          x.sendResponseHeaders(a.status(), body.length == 0 ? -1 : body.length);
          x.getResponseBody().write(body);
          x.close();
        });
    sink.start();
    tokens = Files.writeString(dir.resolve("tokens"), "secret-1\n");
    String source =
        """
        apiVersion: sources.reschedule.dev/v1alpha1
        kind: RescheduleSource
        metadata: {name: %s, namespace: ops}
        spec:
          sink: {uri: "http://127.0.0.1:%d/"}
          suspend: %s
        """;
    int port = sink.getAddress().getPort();
    adapter =
        new Adapter(dir, source.formatted("still", port, true) + "---\n" + source.formatted("live", port, false), tokens);
  }

  @AfterAll
  static void stop() throws Exception {
    if (adapter != null) {
      adapter.close();
    }
    sink.stop(0);
  }

  private static Schedules source(String name) {
    return Schedules.builder(adapter.address + "/ops/" + name).tokenFile(tokens).build();
  }

  /** A request comes back from the adapter with every field that it had, under every kind of key. */
  @Test
  void scheduleAsksForWhatIsWritten() {
    Schedules s = source("still");
    Event event =
        Event.ofType("com.example.mail").withSubject("<welcome>").withDataSchema("http://example.com/mail")
            .withData("application/json", "{\"to\":[1,2.50,\"<é>\"],\"n\":12345678901234567890}".getBytes(StandardCharsets.UTF_8))
            .withExtension("team", "platform").withExtension("urgent", true).withExtension("size", -7);
    Request r =
        Request.at(FAR).withPolicy(Policy.REPLACE).withEvent(event).withMaxInterval(Duration.ofMinutes(90)).withSlack(Duration.ofMinutes(10))
            .withExpiresAt(FAR.plusSeconds(1)).withUid("3f1c").withReason("<because>");
    for (String key : List.of("a", "GitRepo/team-a/site", ".", "..", "...", "a b+c%2F?#&=é\"\\", "//", "k".repeat(512))) {
      Schedule got = s.schedule(key, r);
      assertEquals(
          new Schedule(key, got.revision(), Result.CREATED, State.WAITING, FAR, null, got.scheduledAt(), 0, null, 0, null, false,
              "3f1c", "<because>", Duration.ofMinutes(90), Duration.ofMinutes(10), FAR.plusSeconds(1), event),
          got);
      assertTrue(got.revision() > 0 && Duration.between(got.scheduledAt(), Instant.now()).toSeconds() < 100);
      assertEquals(event, s.get(key).event());
      s.cancel(key);
      s.cancel(key);
      assertThrows(ScheduleException.NotFound.class, () -> s.get(key));
    }
  }

  /** Data is JSON, text or bytes, as its content type says. */
  @Test
  void dataIsKeptByItsContentType() {
    Schedules s = source("still");
    byte[] bytes = {0, (byte) 0xff};
    for (Event e :
        List.of(
            Event.EMPTY.withJson("\"a\""),
            Event.EMPTY.withData("text/plain", "<a>\n\"b\"".getBytes(StandardCharsets.UTF_8)),
            Event.EMPTY.withData("text/plain", "{ \"a\":1}".getBytes(StandardCharsets.UTF_8)),
            Event.EMPTY.withData("application/octet-stream", bytes))) {
      assertArrayEquals(e.data(), s.schedule("data", Request.at(FAR).withEvent(e)).event().data());
    }
  }

  /** Each refusal is an exception of its own, and names the field. */
  @Test
  void refusalsAreTypes() {
    Schedules s = source("still");
    s.schedule("there", Request.at(FAR));
    assertThrows(
        ScheduleException.AlreadyExists.class, () -> s.schedule("there", Request.now().withPolicy(Policy.FAIL)));
    assertThrows(
        ScheduleException.PreconditionFailed.class,
        () -> s.schedule("there", Request.now(), Condition.ifRevision(1L << 60)));
    assertThrows(
        ScheduleException.PreconditionFailed.class, () -> s.schedule("there", Request.now(), Condition.ifAbsent()));
    var invalid =
        assertThrows(ScheduleException.InvalidArgument.class, () -> s.schedule("there", Request.now().withJitter(2)));
    assertEquals(400, invalid.status());
    assertTrue(invalid.getMessage().contains("jitter"), invalid.getMessage());
    assertThrows(ScheduleException.NotFound.class, () -> source("absent").counts());
    var large = Event.EMPTY.withData("text/plain", new byte[300 << 10]);
    assertThrows(ScheduleException.TooLarge.class, () -> s.schedule("there", Request.now().withEvent(large)));
    Backoff once = new Backoff(Duration.ofHours(1), 3.0, Duration.ofHours(2), 1);
    assertEquals(1, s.schedule("backoff", Request.backingOff(once)).attempt());
    assertThrows(ScheduleException.AttemptsExhausted.class, () -> s.schedule("backoff", Request.backingOff(once)));
  }

  /** Conditions protect what another caller scheduled. */
  @Test
  void cancelWithAConditionSparesAnother() {
    Schedules s = source("still");
    Schedule mine = s.schedule("mine", Request.at(FAR).withUid("u1"));
    assertThrows(ScheduleException.PreconditionFailed.class, () -> s.cancel("mine", Condition.ifUid("u2")));
    s.cancel("mine", Condition.ifUid("u1"), Condition.ifRevision(mine.revision()));
    assertThrows(ScheduleException.NotFound.class, () -> s.get("mine"));
  }

  /** Many keys are scheduled, listed by pages, counted and cancelled; a bad one does not cost the others. */
  @Test
  void manyKeysInFewCalls() {
    Schedules s = source("still");
    List<Item> items =
        java.util.stream.IntStream.range(0, 1100)
            .mapToObj(i -> new Item("many/" + i, i == 7 ? Request.at(FAR).withJitter(3) : Request.at(FAR.minusSeconds(i))))
            .toList();
    List<Outcome> outcomes = s.scheduleAll(items);
    assertEquals(1100, outcomes.size());
    assertInstanceOf(ScheduleException.InvalidArgument.class, outcomes.get(7).refused());
    assertNull(outcomes.get(7).schedule());
    assertEquals("many/1099", outcomes.get(1099).schedule().key());
    var listed = s.list(Listing.ALL.withPrefix("many/").withOrder(Order.DUE).withPageSize(400)).toList();
    assertEquals(1099, listed.size());
    assertEquals("many/1099", listed.get(0).key());
    assertTrue(s.counts().pending() >= 1099);
    assertEquals(0, s.counts().watched());
    assertEquals(1099, s.cancelPrefix("many/"));
    assertThrows(ScheduleException.InvalidArgument.class, () -> s.cancelPrefix(""));
  }

  /** A delivery is read, and its answer brings the key back with another event. */
  @Test
  void anAnswerIsTheOutcome() throws Exception {
    Schedules s = source("live");
    Schedule scheduled = s.schedule("turn", Request.now().withEvent(Event.ofType("first").withJson("{\"n\":1}")));
    Delivery first = deliveryOf("turn");
    assertEquals(scheduled.revision(), first.revision());
    assertEquals(scheduled.dueAt(), first.dueAt());
    assertEquals("{\"n\":1}", new String(first.event().data(), StandardCharsets.UTF_8));
    Delivery second = deliveryOf("turn");
    assertEquals("second", second.event().attribute("type"));
    assertEquals("{\"n\":2}", new String(second.event().data(), StandardCharsets.UTF_8));
    assertEquals(0, second.attempt());
  }

  /** Following shows a key from its schedule to its outcome, and goes on behind an event. */
  @Test
  void aKeyIsFollowed() throws Exception {
    Schedules s = source("live");
    try (Following f = s.follow()) {
      CompletableFuture<LiveEvent> first = CompletableFuture.supplyAsync(f::next);
      while (!first.isDone()) { // its first event shows that the stream is there
        s.schedule("first", Request.now());
        TimeUnit.MILLISECONDS.sleep(20);
      }
      assertTrue(!first.get().missed() && !first.get().id().isEmpty() && first.get().at() != null);
      Schedule asked = s.schedule("followed", Request.now());
      LiveEvent scheduled = eventOf(f, "followed");
      assertEquals(LiveEvent.Kind.SCHEDULED, scheduled.kind());
      assertEquals(asked.revision(), scheduled.revision());
      assertEquals(asked.dueAt(), scheduled.dueAt());
      assertEquals(LiveEvent.Kind.STARTED, eventOf(f, "followed").kind());
      LiveEvent outcome = eventOf(f, "followed");
      assertEquals(LiveEvent.Kind.OUTCOME, outcome.kind());
      assertEquals("delivered", outcome.result());
      assertEquals(2, outcome.status() / 100);
      try (Following again = s.follow(scheduled.id())) {
        assertEquals(LiveEvent.Kind.STARTED, eventOf(again, "followed").kind());
        assertEquals(outcome, eventOf(again, "followed"));
      }
    }
    assertThrows(ScheduleException.NotFound.class, () -> source("absent").follow().hasNext());
    Schedules denied = Schedules.builder(adapter.address + "/ops/live").token("wrong").build();
    assertThrows(ScheduleException.Unauthenticated.class, () -> denied.follow().hasNext());
  }

  private static LiveEvent eventOf(Following f, String key) {
    LiveEvent e = f.next();
    while (!e.key().equals(key)) {
      e = f.next();
    }
    return e;
  }

  /** A failure that names a time is tried again then, and shows why it failed. */
  @Test
  void aFailureShows() throws Exception {
    Schedules s = source("live");
    s.schedule("failing", Request.now().withEvent(Event.ofType("failing")));
    deliveryOf("failing");
    Schedule got = settled(s, "failing");
    assertEquals(1, got.attempt());
    assertEquals(1, got.tries());
    assertEquals(503, got.lastFailure().status());
    assertEquals("not yet", got.lastFailure().detail());
    assertTrue(got.nextAttemptAt().isAfter(Instant.now().plusSeconds(3000)), got.toString());
    assertEquals("retrying", s.history("failing").items().get(0).result());
    s.run("failing");
    assertEquals(1, deliveryOf("failing").attempt());
    assertThrows(ScheduleException.NotFound.class, () -> s.run("absent"));
    assertEquals(List.of(), s.history("absent").items());
  }

  /** What is refused is kept, and the key is due again at the time of the answer; it can be redriven and discarded. */
  @Test
  void deadLettersAreKept() throws Exception {
    Schedules s = source("live");
    s.schedule("refused/a", Request.now().withEvent(Event.ofType("refused").withJson("1")));
    deliveryOf("refused/a");
    Schedule again = settled(s, "refused/a");
    assertEquals(0, again.attempt());
    assertTrue(again.dueAt().isAfter(Instant.now().plusSeconds(3000)), again.toString());
    DeadLetter letter = s.deadLetter("refused/a");
    assertEquals(List.of(letter), s.deadLetters("refused/").toList());
    assertEquals(400, letter.status());
    assertEquals("not this one", letter.detail());
    assertEquals(1, letter.attempts());
    assertEquals("refused", letter.event().type());
    s.redrive("refused/a");
    deliveryOf("refused/a");
    settled(s, "refused/a");
    assertEquals(1, s.redrivePrefix("refused/"));
    deliveryOf("refused/a");
    settled(s, "refused/a");
    assertTrue(s.counts().deadLetters() >= 1);
    s.discard("refused/a");
    s.discard("refused/a");
    assertEquals(0, s.discardPrefix("refused/"));
    assertThrows(ScheduleException.NotFound.class, () -> s.deadLetter("refused/a"));
    assertThrows(ScheduleException.NotFound.class, () -> s.redrive("refused/a"));
  }

  /** A dead letter takes the place of what is newer only on request. */
  @Test
  void redriveReplacesOnRequest() throws Exception {
    Schedules s = source("live");
    for (String key : List.of("replaced/one", "replaced/two")) {
      s.schedule(key, Request.now().withEvent(Event.ofType("refused")));
      deliveryOf(key);
      settled(s, key);
      s.schedule(key, Request.at(FAR).withEvent(Event.ofType("newer")));
    }
    assertThrows(ScheduleException.AlreadyExists.class, () -> s.redrive("replaced/one"));
    assertEquals(0, s.redrivePrefix("replaced/"));
    s.redrive("replaced/one", true);
    assertEquals("refused", deliveryOf("replaced/one").event().attribute("type"));
    assertEquals(1, s.redrivePrefix("replaced/two", true));
    assertEquals("refused", deliveryOf("replaced/two").event().attribute("type"));
    settled(s, "replaced/one");
    settled(s, "replaced/two");
    assertEquals(2, s.discardPrefix("replaced/"));
    s.cancelPrefix("replaced/");
  }

  private static Schedule settled(Schedules s, String key) throws InterruptedException {
    long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);
    while (true) {
      Schedule got = s.get(key);
      if (!got.inFlight() && (got.nextAttemptAt() != null || got.state() == State.WAITING)) {
        return got;
      }
      assertTrue(System.nanoTime() < end, got.toString());
      TimeUnit.MILLISECONDS.sleep(20);
    }
  }

  /** An event goes in with its attributes, and comes out as it was. */
  @Test
  void anEventIsDelivered() throws Exception {
    source("live")
        .send(
            new CloudEvent(
                Map.of("specversion", "1.0", "id", "7", "source", "/test", "type", "third", "subject", "é \"%",
                    "reschedulekey", "sent é"),
                null));
    Delivery d = deliveryOf("sent é");
    assertEquals("é \"%", d.event().attribute("subject"));
    assertEquals("7", d.event().attribute("id"));
    assertThrows(
        ScheduleException.InvalidArgument.class,
        () ->
            source("live")
                .send(
                    new CloudEvent(
                        Map.of("specversion", "1.0", "id", "8", "source", "/test", "type", "t", "rescheduleafter", "x"),
                        null)));
  }

  /** A resync needs a source that watches. */
  @Test
  void resyncNeedsWatch() {
    assertThrows(
        ScheduleException.PreconditionFailed.class, () -> source("still").resync(Duration.ofMinutes(1), "Website/"));
  }

  private static Delivery deliveryOf(String key) throws InterruptedException {
    while (true) {
      Delivery d = deliveries.poll(60, TimeUnit.SECONDS);
      if (d == null) {
        throw new AssertionError("no delivery of " + key);
      }
      if (d.key().equals(key)) {
        return d;
      }
    }
  }

  /** A wrong token is refused; a token that the kubelet renews is used at once. */
  @Test
  void tokenIsReadForEveryTry() throws Exception {
    Path file = Files.writeString(dir.resolve("renewed"), "wrong");
    Schedules s = Schedules.builder(adapter.address + "/ops/still").tokenFile(file).build();
    assertThrows(ScheduleException.Unauthenticated.class, s::counts);
    Files.writeString(file, "secret-1\n");
    s.counts();
  }
}
