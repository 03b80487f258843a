package dev.reschedule.client;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.temporal.ChronoUnit;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.Executors;

import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.function.Executable;

import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;

/** The client against a server that misbehaves. */
@Timeout(60)
class SchedulesTest {

  private interface Handler {
    void handle(HttpExchange x, int n) throws IOException;
  }

  private final List<String> requests = new CopyOnWriteArrayList<>();
  private HttpServer server;
  private Handler handler;

  @BeforeEach
  void start() throws IOException {
    server = HttpServer.create(new InetSocketAddress("127.0.0.1", 0), 0);
    server.setExecutor(Executors.newCachedThreadPool());
    server.createContext(
        "/",
        x -> {
          String body = new String(x.getRequestBody().readAllBytes(), StandardCharsets.UTF_8);
          requests.add(x.getRequestMethod() + " " + x.getRequestURI() + " " + body);
          handler.handle(x, requests.size());
          x.close();
        });
    server.start();
  }

  @AfterEach
  void stop() {
    server.stop(0);
  }

  private Schedules.Builder source() {
    return Schedules.builder("http://127.0.0.1:" + server.getAddress().getPort() + "/ops/s");
  }

  private static void answer(HttpExchange x, int status, String type, String body) throws IOException {
    byte[] b = body.getBytes(StandardCharsets.UTF_8);
    x.getResponseHeaders().set("Content-Type", type);
    x.sendResponseHeaders(status, b.length);
    x.getResponseBody().write(b);
  }

  private static final String KEY =
      "{\"key\":\"k\",\"revision\":3,\"state\":\"waiting\",\"dueAt\":\"2030-01-01T00:00:00Z\",\"future\":[1]}";

  /** A call that is refused for now is repeated; one that counts is not, since its first try may have counted. */
  @Test
  void callsAreRepeatedWhereItIsSafe() {
    handler =
        (x, n) -> {
          if (n == 1) {
            answer(x, 503, "Application/Problem+JSON; charset=utf-8", "{\"code\":\"unavailable\",\"detail\":\"moving\"}");
          } else {
            answer(x, 200, "application/json", KEY);
          }
        };
    assertEquals(3, source().build().schedule("k", Request.now()).revision());
    assertEquals(2, requests.size());
    requests.clear();
    assertThrows(
        ScheduleException.Unavailable.class,
        () -> source().build().schedule("k", Request.backingOff(Backoff.DEFAULT)));
    assertEquals(1, requests.size());
  }

  /** A full source is asked again after the time that it names, within the budget only. */
  @Test
  void retryAfterIsWithinTheBudget() {
    handler =
        (x, n) -> {
          x.getResponseHeaders().set("Retry-After", "30");
          answer(x, 429, "application/problem+json", "{\"code\":\"quota_exceeded\",\"detail\":\"full\"}");
        };
    var e = assertThrows(ScheduleException.QuotaExceeded.class, () -> source().build().get("k"));
    assertEquals(Duration.ofSeconds(30), e.retryAfter());
    assertEquals(1, requests.size());
  }

  /** An answer that never ends costs neither time nor memory without a bound. */
  @Test
  void answersAreBounded() {
    handler =
        (x, n) -> {
          x.getResponseHeaders().set("Content-Type", "application/json");
          x.sendResponseHeaders(200, 0);
          byte[] chunk = new byte[64 << 10];
          for (int i = 0; i < 1000; i++) {
            x.getResponseBody().write(chunk);
          }
        };
    var e =
        assertThrows(
            ScheduleException.class,
            () -> source().maxAnswerBytes(1 << 20).retryBudget(Duration.ZERO).build().get("k"));
    assertTrue(e.getMessage().contains("larger than"), e.getMessage());
    handler =
        (x, n) -> {
          x.sendResponseHeaders(200, 0);
          x.getResponseBody().write('{');
          x.getResponseBody().flush();
          try {
            Thread.sleep(5000);
          } catch (InterruptedException i) {
            Thread.currentThread().interrupt();
          }
        };
    long start = System.nanoTime();
    assertThrows(
        ScheduleException.Unavailable.class,
        () -> source().timeout(Duration.ofMillis(300)).retryBudget(Duration.ZERO).build().get("k"));
    assertTrue(System.nanoTime() - start < 4_000_000_000L);
  }

  /** What a proxy says is not believed: its 404 does not mean that nothing is scheduled. */
  @Test
  void aProxyIsNotASource() {
    handler = (x, n) -> answer(x, 404, "text/html", "<h1>no such host</h1>");
    var e = assertThrows(ScheduleException.class, () -> source().build().get("k"));
    assertFalse(e instanceof ScheduleException.NotFound);
    assertEquals(404, e.status());
    handler =
        (x, n) -> {
          x.getResponseHeaders().set("Location", "https://elsewhere/");
          answer(x, 301, "text/plain", "");
        };
    e = assertThrows(ScheduleException.class, () -> source().build().get("k"));
    assertTrue(e.getMessage().contains("https://elsewhere/"), e.getMessage());
    handler = (x, n) -> answer(x, 200, "application/json", KEY);
    assertThrows(ScheduleException.class, () -> source().build().get("other"));
  }

  /** A key is one segment of the path, also where a proxy cleans paths. */
  @Test
  void keysAreOneSegment() {
    handler = (x, n) -> x.sendResponseHeaders(204, -1);
    source().build().cancel("..");
    source().build().cancel("a/b c+é");
    assertEquals(
        List.of("DELETE /ops/s/schedules/%2E%2E ", "DELETE /ops/s/schedules/a%2Fb%20c%2B%C3%A9 "), requests);
  }

  /** A resync is a POST with what it is given. */
  @Test
  void resyncNamesTimeAndPrefix() {
    handler = (x, n) -> answer(x, 200, "application/json", "{\"scheduled\":12}");
    assertEquals(12, source().build().resync(Duration.ofMinutes(10), "Website/"));
    assertEquals(12, source().build().resync(null, null));
    assertEquals(
        List.of("POST /ops/s/resync {\"over\":\"PT10M\",\"prefix\":\"Website/\"}", "POST /ops/s/resync {}"), requests);
  }

  /** A wrong address is found when the client is made. */
  @Test
  void anAddressIsThatOfASource() {
    for (String bad : List.of("ftp://h/a/b", "http://h/a", "http://h", "http://u@h/a/b", "http://h/a/b?c", "/a/b")) {
      assertThrows(IllegalArgumentException.class, () -> Schedules.at(bad), bad);
    }
    assertThrows(IllegalStateException.class, () -> Schedules.fromEnvironment(Map.of()));
    assertThrows(IllegalArgumentException.class, () -> source().caCertificates("no PEM").build());
    Schedules.fromEnvironment(Map.of("RESCHEDULE_URL", "HTTP://h/a/b/"));
  }

  /** The data of an answer's event is bytes, and a wait is one that a source takes. */
  @Test
  void answersKeepBytesAndClampWaits() {
    byte[] binary = {(byte) 0xff, 0, (byte) 0x80, 1};
    CloudEvent event = new CloudEvent(Map.of("specversion", "1.0", "id", "1", "source", "s", "type", "t"), binary);
    assertArrayEquals(binary, Answer.again(Duration.ofHours(1), event).body());
    assertEquals(Answer.retry("no"), Answer.text(503, "no"));
    String century = "3155760000000ms";
    for (var wait :
        Map.of(
                Duration.ofSeconds(-1), "0ms", ChronoUnit.FOREVER.getDuration(), century, Duration.ofDays(40_000), century,
                Duration.ofHours(876_600), century, Duration.ofNanos(1), "1ms", Duration.ofSeconds(Long.MIN_VALUE), "0ms")
            .entrySet()) {
      assertEquals(wait.getValue(), Answer.again(wait.getKey()).headers().get("Reschedule-After"));
    }
  }

  /** A Retry-After of any length is a wait, and not an IllegalArgumentException out of the call. */
  @Test
  void retryAfterHasABound() {
    for (String seconds : List.of("3000000000", "9".repeat(30), "Fri, 31 Dec 9999 23:59:59 GMT")) {
      handler =
          (x, n) -> {
            x.getResponseHeaders().set("Retry-After", seconds);
            answer(x, 503, "text/plain", "later");
          };
      var e = assertThrows(ScheduleException.Unavailable.class, () -> source().build().get("k"));
      assertTrue(e.retryAfter().compareTo(Duration.ofDays(30_000)) > 0, e.retryAfter().toString());
    }
    for (String none : List.of("", "-5", "+5", "1.5", "soon")) {
      assertNull(Calls.retryAfter(none));
    }
  }

  /** A closed client leaves no threads. */
  @Test
  void closeEndsTheThreads() throws InterruptedException {
    long before = threads();
    handler = (x, n) -> answer(x, 200, "application/json", KEY);
    for (int i = 0; i < 10; i++) {
      try (Schedules s = source().build()) {
        s.get("k");
        if (i == 9) {
          s.close();
          assertThrows(IllegalStateException.class, () -> s.get("k"));
        }
      }
    }
    for (int i = 0; i < 300 && threads() > before; i++) {
      System.gc(); // before Java 21 an HttpClient ends when it is collected
      Thread.sleep(100);
    }
    assertTrue(threads() <= before, before + " threads before, and now " + threads());
  }

  private static long threads() {
    return Thread.getAllStackTraces().keySet().stream()
        .filter(t -> t.getName().startsWith("reschedule-client") || t.getName().startsWith("HttpClient-"))
        .count();
  }

  /** Half of a surrogate pair is refused: it was sent as a question mark, which is another key. */
  @Test
  void halfACharacterIsRefused() {
    handler = (x, n) -> answer(x, 200, "application/json", KEY);
    String half = "\ud800";
    Schedules s = source().build();
    for (Executable call :
        List.<Executable>of(
            () -> s.schedule(half, Request.now()),
            () -> s.cancel(half),
            () -> s.cancelPrefix(half),
            () -> s.scheduleAll(List.of(new Item(half, Request.now()))))) {
      var e = assertThrows(ScheduleException.class, call);
      assertTrue(e.getMessage().contains("half of a surrogate pair"), e.getMessage());
    }
    CloudEvent event =
        new CloudEvent(Map.of("specversion", "1.0", "id", "1", "source", "s", "type", "t", "subject", half), null);
    assertThrows(IllegalArgumentException.class, () -> s.send(event));
    assertEquals(List.of(), requests);
  }
}
