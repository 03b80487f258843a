package dev.reschedule.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;

import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;

/** The stream of events from a server that misbehaves. */
@Timeout(60)
class FollowingTest {

  private interface Handler {
    void handle(HttpExchange x, int n) throws Exception;
  }

  private static final String EVENT = "id: e-2\nevent: started\ndata: {\"key\":\"a\",\"at\":\"2030-01-01T00:00:00Z\",\"attempt\":1}\n\n";

  private final List<String> asked = new CopyOnWriteArrayList<>();
  private final ExecutorService threads = Executors.newCachedThreadPool();
  private HttpServer server;
  private Handler handler;

  @BeforeEach
  void start() throws IOException {
    server = HttpServer.create(new InetSocketAddress("127.0.0.1", 0), 0);
    server.setExecutor(threads);
    server.createContext(
        "/",
        x -> {
          asked.add(x.getRequestHeaders().getFirst("Last-Event-ID") + " " + x.getRequestHeaders().getFirst("Authorization"));
          try {
            handler.handle(x, asked.size());
          } catch (Exception e) {
            // The client has gone, or the test is over.
          }
          x.close();
        });
    server.start();
  }

  @AfterEach
  void stop() {
    threads.shutdownNow();
    server.stop(0);
  }

  private Schedules.Builder source() {
    return Schedules.builder("http://127.0.0.1:" + server.getAddress().getPort() + "/ops/s");
  }

  private static void write(HttpExchange x, String text) throws IOException {
    x.getResponseHeaders().set("Content-Type", "Text/Event-Stream;charset=utf-8");
    if (x.getResponseCode() < 0) {
      x.sendResponseHeaders(200, 0);
    }
    x.getResponseBody().write(text.getBytes(StandardCharsets.UTF_8));
    x.getResponseBody().flush();
  }

  private static void refuse(HttpExchange x, int status, String code) throws IOException {
    x.getResponseHeaders().set("Content-Type", "application/problem+json");
    byte[] body = ("{\"code\":\"" + code + "\",\"detail\":\"no\"}").getBytes(StandardCharsets.UTF_8);
    x.sendResponseHeaders(status, body.length);
    x.getResponseBody().write(body);
  }

  private static void hang() throws InterruptedException {
    new CountDownLatch(1).await();
  }

  /** A stream that breaks off is resumed behind its last whole event, a gap is marked, and a refusal ends it. */
  @Test
  void resumesAndMarksAGap() {
    handler =
        (x, n) -> {
          switch (n) {
            case 1 -> write(x, ": following\nid: e-1\n\n" + EVENT + "id: e-3\nevent: outc");
            case 2 -> refuse(x, 503, "unavailable");
            case 3 -> write(x, ": some events since the last one are not known any more\r\n\r\nid:e-9\r\nevent:new\r\ndata: {\"key\":\r\ndata: \"b\"}\r\n\r\n" + EVENT);
            default -> refuse(x, 403, "permission_denied");
          }
        };
    try (Following f = source().build().follow("e-0")) {
      LiveEvent a = f.next();
      assertEquals(
          new LiveEvent("e-2", LiveEvent.Kind.STARTED, "a", java.time.Instant.parse("2030-01-01T00:00:00Z"), 0, null, 1, "", 0, false), a);
      assertEquals(new LiveEvent("e-9", null, "b", null, 0, null, 0, "", 0, true), f.next());
      assertEquals(a, f.next());
      assertThrows(ScheduleException.PermissionDenied.class, f::hasNext);
      assertFalse(f.hasNext());
    }
    assertEquals(List.of("e-0 null", "e-2 null", "e-2 null", "e-2 null"), asked);
  }

  /** Refusals are the client's types, and are not asked for again. */
  @Test
  void refusalsEndIt() {
    for (var want : List.of(List.of("401", "unauthenticated"), List.of("404", "not_found"), List.of("410", ""))) {
      asked.clear();
      handler = (x, n) -> refuse(x, Integer.parseInt(want.get(0)), want.get(1));
      var e = assertThrows(ScheduleException.class, () -> source().build().follow().hasNext());
      assertEquals(want, List.of(String.valueOf(e.status()), e.code()));
      assertEquals(1, asked.size());
    }
    handler = (x, n) -> x.sendResponseHeaders(200, -1);
    var e = assertThrows(ScheduleException.class, () -> source().build().follow().hasNext());
    assertTrue(e.getMessage().contains("not a stream"), e.getMessage());
    assertThrows(IllegalArgumentException.class, () -> source().build().follow("a\nb"));
  }

  /** Neither one endless line, nor an endless event of many lines, nor what is no JSON is kept. */
  @Test
  void eventsAreBounded() {
    for (String endless : List.of("d".repeat(1000), "data: " + "x".repeat(1000) + "\n", "data: x\n\n", "id: " + "i".repeat(300) + "\n")) {
      asked.clear();
      handler =
          (x, n) -> {
            while (true) {
              write(x, endless);
            }
          };
      var e = assertThrows(ScheduleException.class, () -> source().build().follow().hasNext());
      assertTrue(e.getMessage().contains("not a stream"), e.getMessage());
      assertEquals(1, asked.size());
    }
  }

  /** A stream without a whole line for a time is given up, also when bytes drip. */
  @Test
  void silenceIsALostConnection() {
    handler =
        (x, n) -> {
          if (n == 1) {
            while (true) {
              write(x, "x");
              TimeUnit.MILLISECONDS.sleep(20);
            }
          }
          write(x, EVENT);
        };
    try (Following f = source().build().follow(null, Duration.ofMillis(300))) {
      assertEquals("a", f.next().key());
    }
    assertEquals(2, asked.size());
  }

  /** A token that the kubelet renews is used by the next connection, also when the old one was refused. */
  @Test
  void tokenIsReadForEveryConnection(@TempDir Path dir) throws Exception {
    Path file = Files.writeString(dir.resolve("token"), "one");
    handler =
        (x, n) -> {
          if (n == 1) {
            Files.writeString(file, "two");
            refuse(x, 401, "unauthenticated");
          } else if (n == 2) {
            Files.writeString(file, "three");
            write(x, EVENT);
          } else {
            write(x, EVENT);
          }
        };
    try (Following f = source().tokenFile(file).build().follow()) {
      f.next();
      f.next();
    }
    assertEquals(List.of("null Bearer one", "null Bearer two", "e-2 Bearer three"), asked);
  }

  /** Closing and interrupting end the wait for an answer and for an event, and the source sees the end. */
  @Test
  void closeAndInterruptEndTheWait() throws Exception {
    for (boolean answered : List.of(true, false)) {
      for (boolean interrupt : List.of(true, false)) {
        CountDownLatch there = new CountDownLatch(1);
        CountDownLatch gone = new CountDownLatch(1);
        handler =
            (x, n) -> {
              if (answered) {
                write(x, EVENT);
              }
              there.countDown();
              if (!answered) {
                hang();
              }
              try {
                while (true) {
                  write(x, ": heartbeat\n\n");
                  TimeUnit.MILLISECONDS.sleep(10);
                }
              } finally {
                gone.countDown();
              }
            };
        Following f = source().build().follow();
        CompletableFuture<Boolean> interrupted = new CompletableFuture<>();
        Thread reader =
            new Thread(
                () -> {
                  f.forEachRemaining(e -> {});
                  interrupted.complete(Thread.currentThread().isInterrupted());
                });
        reader.start();
        there.await();
        if (interrupt) {
          reader.interrupt();
        } else {
          f.close();
        }
        assertEquals(interrupt, interrupted.get(10, TimeUnit.SECONDS));
        assertTrue(!answered || gone.await(10, TimeUnit.SECONDS));
      }
    }
  }
}
