package dev.reschedule.josdk;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.InetSocketAddress;
import java.util.Collection;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.Semaphore;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;

import dev.reschedule.client.Answer;

/**
 * The door of the operator, on the HTTP server of the JDK. Bodies, threads and time are bounded; while runs are under
 * way no thread of the server waits.
 */
final class DeliveryServer {

  /** Processes a delivery, and never fails. */
  interface Deliveries {
    CompletionStage<Answer> deliver(Map<String, ? extends Collection<String>> headers, byte[] body);
  }

  /** An event has at most 256 KiB of data, as base64 at most, and its attributes. */
  static final int MAX_BODY = 8 << 20;

  /** Deliveries at a time, and their bytes. The answer to more is 503. */
  static final int MAX_DELIVERIES = 1000;

  private static final int MAX_KIBIBYTES = 32 << 10;
  /** They read bodies and objects, and end when they are idle. Slow senders have one each until they are cut off. */
  private static final int THREADS = 256;
  private static final int IDLE_SECONDS = 10;
  private static final int STOP_SECONDS = 2;

  private static final Logger log = LoggerFactory.getLogger(DeliveryServer.class);

  private final Semaphore deliveries = new Semaphore(MAX_DELIVERIES);
  private final Semaphore kibibytes = new Semaphore(MAX_KIBIBYTES);
  private final AtomicInteger open = new AtomicInteger();
  private final TokenVerifier verifier; // null: every sender is taken
  private final Deliveries operator;
  private final HttpServer server;
  private final ExecutorService threads;

  static {
    // The server reads them once, when its class is loaded. They are the bounds of one request, in seconds, and
    // of connections.
    setDefault("sun.net.httpserver.maxReqTime", "30");
    setDefault("sun.net.httpserver.maxIdleConnections", "1000");
    setDefault("jdk.httpserver.maxConnections", "4000");
    setDefault("sun.net.httpserver.nodelay", "true");
  }

  private static void setDefault(String name, String value) {
    if (System.getProperty(name) == null) {
      System.setProperty(name, value);
    }
  }

  private DeliveryServer(HttpServer server, TokenVerifier verifier, Deliveries operator) {
    this.server = server;
    this.verifier = verifier;
    this.operator = operator;
    ThreadPoolExecutor pool =
        new ThreadPoolExecutor(
            THREADS,
            THREADS,
            IDLE_SECONDS,
            TimeUnit.SECONDS,
            new LinkedBlockingQueue<>(), // of connections, which are bounded
            r -> {
              Thread t = new Thread(r, "deliveries");
              t.setDaemon(true);
              return t;
            });
    pool.allowCoreThreadTimeOut(true);
    this.threads = pool;
  }

  static DeliveryServer start(int port, TokenVerifier verifier, Deliveries operator) {
    try {
      HttpServer http = HttpServer.create(new InetSocketAddress(port), 1024);
      DeliveryServer s = new DeliveryServer(http, verifier, operator);
      http.setExecutor(s.threads);
      http.createContext("/", s::serve);
      http.start();
      return s;
    } catch (IOException e) {
      throw new UncheckedIOException("the port of deliveries cannot be opened", e);
    }
  }

  int port() {
    return server.getAddress().getPort();
  }

  /** Ends when the answers that are under way are written, or after a moment. */
  void stop() {
    long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(STOP_SECONDS);
    while (open.get() > 0 && System.nanoTime() < end) {
      try {
        TimeUnit.MILLISECONDS.sleep(5);
      } catch (InterruptedException e) {
        Thread.currentThread().interrupt();
        break;
      }
    }
    server.stop(0);
    threads.shutdownNow();
  }

  private void serve(HttpExchange x) {
    open.incrementAndGet();
    try {
      String method = x.getRequestMethod();
      if (method.equals("GET") || method.equals("HEAD")) {
        write(x, new Answer(200, Map.of(), new byte[0])); // for probes: an operator that answers is ready
      } else if (!method.equals("POST")) {
        write(x, Answer.text(405, "events are sent with POST").with("Allow", "GET, HEAD, POST"));
      } else {
        receive(x);
      }
    } catch (IOException e) {
      log.debug("A delivery did not come in whole", e);
      write(x, Answer.retry("the event did not come in whole"));
    } catch (Throwable e) { // an Error too: the delivery comes again
      log.error("A delivery cannot be processed now, and comes again", e);
      write(x, Answer.retry("the delivery failed; the operator's log has the reason"));
    }
  }

  private void receive(HttpExchange x) throws IOException {
    if (verifier != null) {
      Answer refusal = verifier.refusal(x.getRequestHeaders().get("Authorization"));
      if (refusal != null) {
        write(x, refusal); // its body is not read
        return;
      }
    }
    int length = length(x);
    if (length > MAX_BODY) {
      write(x, Answer.text(413, "an event has at most " + MAX_BODY + " bytes"));
      return;
    }
    int size = length / 1024 + 1;
    if (!deliveries.tryAcquire()) {
      write(x, busy());
      return;
    }
    if (!kibibytes.tryAcquire(size)) {
      deliveries.release();
      write(x, busy());
      return;
    }
    CompletionStage<Answer> answer;
    try {
      byte[] body = x.getRequestBody().readNBytes(MAX_BODY + 1);
      answer =
          body.length > MAX_BODY
              ? CompletableFuture.completedFuture(Answer.text(413, "an event has at most " + MAX_BODY + " bytes"))
              : operator.deliver(x.getRequestHeaders(), body);
    } catch (IOException | RuntimeException | Error e) {
      deliveries.release();
      kibibytes.release(size);
      throw e;
    }
    // In a thread of the door: a sender that does not read must not stop the thread that has ended the run.
    answer.whenCompleteAsync(
        (a, e) -> {
          deliveries.release();
          kibibytes.release(size);
          write(x, a);
        },
        threads);
  }

  /** The length of the body; the largest if it is not known before it is read. */
  private static int length(HttpExchange x) {
    String length = x.getRequestHeaders().getFirst("Content-Length");
    try {
      return length == null ? MAX_BODY : (int) Math.min(Long.parseLong(length), Integer.MAX_VALUE - 1);
    } catch (NumberFormatException e) {
      return MAX_BODY;
    }
  }

  private static Answer busy() {
    return Answer.retry("too many deliveries at a time").with("Retry-After", "1");
  }

  private void write(HttpExchange x, Answer a) {
    try (x) {
      byte[] body = a.body();
      a.headers().forEach((name, value) -> x.getResponseHeaders().set(name, value));
      x.sendResponseHeaders(a.status(), body.length == 0 ? -1 : body.length);
      if (body.length > 0) {
        x.getResponseBody().write(body);
        x.getResponseBody().flush(); // newer JDKs read the rest of a refused body first
      }
    } catch (IOException | RuntimeException e) {
      log.debug("The sender of a delivery has gone before its answer", e);
    } finally {
      open.decrementAndGet();
    }
  }
}
