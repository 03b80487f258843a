package dev.reschedule.client;

import java.net.ConnectException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpConnectTimeoutException;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.time.DateTimeException;
import java.time.Duration;
import java.time.Instant;
import java.time.ZonedDateTime;
import java.time.format.DateTimeFormatter;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

import javax.net.ssl.SSLException;

import com.fasterxml.jackson.databind.JsonNode;

/** Makes calls, and repeats them where that is safe, useful and in time. */
final class Calls {

  private static final long FIRST_WAIT_MILLIS = 100;
  private static final long MAX_WAIT_MILLIS = 5000;

  /** The longest wait that an answer asks for. A budget of calls is far below it. */
  private static final Duration MAX_RETRY_AFTER = Duration.ofDays(36_525);

  /** How much is read of an answer that is not a success. */
  private static final int MAX_REFUSAL = 64 << 10;

  private volatile HttpClient http; // null once it is closed
  private final ExecutorService threads;
  private final String address;
  private final Token token;
  private final Duration timeout;
  private final Duration budget;
  private final int maxAnswer;

  Calls(HttpClient.Builder http, String address, Token token, Duration timeout, Duration budget, int maxAnswer) {
    this.threads =
        Executors.newCachedThreadPool(
            r -> {
              Thread t = new Thread(r, "reschedule-client");
              t.setDaemon(true);
              return t;
            });
    this.http = http.executor(threads).build();
    this.address = address;
    this.token = token;
    this.timeout = timeout;
    this.budget = budget;
    this.maxAnswer = maxAnswer;
  }

  /**
   * A request to the source.
   *
   * @param path below the address, encoded, with its query
   * @param repeatable a second time does no harm when the outcome of the first is not known
   * @param want the statuses of success
   * @param timeout how long a try may take; null is the client's
   */
  record Call(
      String method,
      String path,
      byte[] body,
      Map<String, String> headers,
      boolean repeatable,
      Set<Integer> want,
      Duration timeout) {

    Call with(byte[] b) {
      return new Call(method, path, b, headers, repeatable, want, timeout);
    }

    Call headers(Map<String, String> h) {
      return new Call(method, path, body, h, repeatable, want, timeout);
    }

    Call repeatable(boolean r) {
      return new Call(method, path, body, headers, r, want, timeout);
    }

    Call wanting(Integer... statuses) {
      return new Call(method, path, body, headers, repeatable, Set.of(statuses), timeout);
    }

    Call within(Duration d) {
      return new Call(method, path, body, headers, repeatable, want, d);
    }
  }

  static Call call(String method, String path) {
    return new Call(method, path, null, Map.of(), false, Set.of(), null);
  }

  /** A try that failed, and whether it may have changed something. */
  private record Failure(ScheduleException exception, boolean again, boolean unknown) {}

  /** Returns the JSON of the answer; null if it has no body. */
  JsonNode make(Call call) {
    long start = System.nanoTime();
    boolean renewed = false;
    ScheduleException lost = null;
    for (int n = 0; ; n++) {
      String sent = token.read();
      HttpResponse<byte[]> response = null;
      Failure failure;
      try {
        response = send(call, sent);
        if (call.want.contains(response.statusCode())) {
          return body(response);
        }
        failure = judge(refusal(response), false);
      } catch (ExecutionException e) {
        failure = failed(e.getCause());
      } catch (TimeoutException e) {
        failure = judge(unavailable("there was no answer within " + limit(call), e), true);
      }
      if (failure.exception instanceof ScheduleException.Unauthenticated && !renewed) {
        String fresh = token.read();
        if (fresh != null && !fresh.equals(sent)) {
          renewed = true;
          continue;
        }
      }
      long wait = backoff(n, failure.exception.retryAfter());
      boolean late = System.nanoTime() - start + TimeUnit.MILLISECONDS.toNanos(wait) > budget.toNanos();
      if (!failure.again || failure.unknown && !call.repeatable || late) {
        if (lost != null && lost != failure.exception) {
          failure.exception.addSuppressed(lost); // an earlier try may have been a success
        }
        throw failure.exception;
      }
      lost = failure.unknown ? failure.exception : lost;
      pause(wait, failure.exception);
    }
  }

  private HttpResponse<byte[]> send(Call call, String sent) throws ExecutionException, TimeoutException {
    HttpRequest.Builder b =
        request(call.path, sent)
            .timeout(limit(call))
            .method(
                call.method,
                call.body == null
                    ? HttpRequest.BodyPublishers.noBody()
                    : HttpRequest.BodyPublishers.ofByteArray(call.body));
    if (call.body != null && !call.headers.containsKey("Ce-Type")) {
      b.setHeader("Content-Type", "application/json");
    }
    call.headers.forEach(b::setHeader);
    CompletableFuture<HttpResponse<byte[]>> answer =
        http().sendAsync(
            b.build(),
            info ->
                call.want.contains(info.statusCode())
                    ? new BoundedBody(maxAnswer, false)
                    : new BoundedBody(MAX_REFUSAL, true));
    try {
      // The timeout of a request ends with the headers of its answer. This one includes the body.
      return answer.get(limit(call).toMillis(), TimeUnit.MILLISECONDS);
    } catch (InterruptedException e) {
      Thread.currentThread().interrupt();
      throw unavailable("the call was interrupted", e);
    } finally {
      answer.cancel(true);
    }
  }

  private HttpClient http() {
    HttpClient open = http;
    if (open == null) {
      throw new IllegalStateException("the client is closed");
    }
    return open;
  }

  /** Ends the threads of the client. Before Java 21 the last one ends when the HttpClient is collected. */
  void close() {
    HttpClient open = http;
    http = null;
    if (open == null) {
      return;
    }
    try {
      HttpClient.class.getMethod("shutdownNow").invoke(open);
    } catch (ReflectiveOperationException e) {
      // Java 17 to 20 have none.
    }
    threads.shutdown();
  }

  private HttpRequest.Builder request(String path, String sent) {
    HttpRequest.Builder b =
        HttpRequest.newBuilder(URI.create(address + path)).setHeader("User-Agent", "reschedule-client-java");
    if (sent != null) {
      b.setHeader("Authorization", "Bearer " + sent);
    }
    return b;
  }

  /** Says that a stream could not be opened, and another try may succeed. */
  static final class Again extends Exception {
    private static final long serialVersionUID = 1L;
    final transient ScheduleException exception;

    Again(ScheduleException e) {
      super(e);
      exception = e;
    }
  }

  /** Asks for the stream of events behind an id; null is from now on. Its reader bounds the time that it is silent. */
  Stream stream(String path, String after) {
    String sent = token.read();
    HttpRequest.Builder b = request(path, sent).setHeader("Accept", "text/event-stream");
    if (after != null) {
      b.setHeader("Last-Event-ID", after);
    }
    EventBody events = new EventBody();
    return new Stream(
        sent,
        events,
        http().sendAsync(
            b.build(),
            info ->
                info.statusCode() == 200
                    ? HttpResponse.BodySubscribers.mapping(events, e -> new byte[0])
                    : new BoundedBody(MAX_REFUSAL, true)));
  }

  /** A stream, from the request on. */
  final class Stream {
    private final String sent;
    private final EventBody events;
    private final CompletableFuture<HttpResponse<byte[]>> answer;

    private Stream(String sent, EventBody events, CompletableFuture<HttpResponse<byte[]>> answer) {
      this.sent = sent;
      this.events = events;
      this.answer = answer;
    }

    /**
     * Ends the stream, and the wait in {@link #open} with a CancellationException. An answer that has just come can no
     * longer be cancelled, but its body can be stopped.
     */
    void cancel() {
      answer.cancel(true);
      events.stop();
    }

    EventBody open() throws Again, InterruptedException {
      Failure failure;
      boolean opened = false;
      try {
        HttpResponse<byte[]> r = answer.get(timeout.toMillis(), TimeUnit.MILLISECONDS);
        String media = r.headers().firstValue("Content-Type").orElse("none");
        if (r.statusCode() == 200 && Event.media(media).equals("text/event-stream")) {
          opened = true;
          return events;
        }
        if (r.statusCode() == 200) {
          throw noStream("its content type is " + media, null);
        }
        failure = judge(refusal(r), false);
      } catch (ExecutionException e) {
        failure = failed(e.getCause());
      } catch (TimeoutException e) {
        failure = judge(unavailable("there was no answer within " + timeout, e), true);
      } finally {
        if (!opened) {
          cancel();
        }
      }
      boolean renewed =
          failure.exception instanceof ScheduleException.Unauthenticated && sent != null && !sent.equals(token.read());
      if (failure.again || renewed) {
        throw new Again(failure.exception);
      }
      throw failure.exception;
    }
  }

  static ScheduleException noStream(String detail, Throwable cause) {
    return ScheduleException.of(200, "", null, "this is not a stream of a RescheduleSource: " + detail, null, cause);
  }

  private Duration limit(Call call) {
    return call.timeout == null ? timeout : call.timeout;
  }

  private static JsonNode body(HttpResponse<byte[]> response) {
    if (response.body().length == 0) {
      return null;
    }
    try {
      return Json.read(response.body(), "the answer");
    } catch (IllegalArgumentException e) {
      throw ScheduleException.of(
          response.statusCode(), "", null, "this is not an answer of a RescheduleSource: " + e.getMessage(), null, e);
    }
  }

  private static Failure failed(Throwable cause) {
    boolean undone = cause instanceof ConnectException || cause instanceof HttpConnectTimeoutException;
    ScheduleException e = unavailable("the source cannot be reached: " + cause, cause);
    return new Failure(e, !(cause instanceof SSLException), !undone);
  }

  private static Failure judge(ScheduleException e, boolean unknown) {
    boolean full = e instanceof ScheduleException.QuotaExceeded;
    boolean away = e instanceof ScheduleException.Unavailable;
    return new Failure(e, full || away, away || unknown);
  }

  private static ScheduleException unavailable(String detail, Throwable cause) {
    return ScheduleException.of(0, "unavailable", null, detail, null, cause);
  }

  private static ScheduleException refusal(HttpResponse<byte[]> r) {
    Duration after = r.headers().firstValue("Retry-After").map(Calls::retryAfter).orElse(null);
    if (Event.media(r.headers().firstValue("Content-Type").orElse("")).equals("application/problem+json")) {
      try {
        JsonNode p = Json.read(r.body(), "the problem");
        if (!p.path("code").asText("").isEmpty()) {
          return ScheduleException.of(
              r.statusCode(), p.get("code").asText(), Json.text(p, "field"), p.path("detail").asText(""), after, null);
        }
      } catch (IllegalArgumentException e) {
        // The status counts.
      }
    }
    // A proxy, or a Service without a pod behind it.
    String code =
        switch (r.statusCode()) {
          case 401 -> "unauthenticated";
          case 403 -> "permission_denied";
          case 502, 503, 504 -> "unavailable";
          default -> "";
        };
    String text = new String(r.body(), StandardCharsets.UTF_8).strip();
    String detail =
        r.headers()
            .firstValue("Location")
            .map(to -> ", but a redirect to " + to + ": is the address status.address.url of the source?")
            .orElse(text.isEmpty() ? "" : ", but \"" + text.substring(0, Math.min(200, text.length())) + '"');
    return ScheduleException.of(
        r.statusCode(), code, null, "not an answer of a RescheduleSource" + detail, after, null);
  }

  /** Reads seconds or a date, at most {@link #MAX_RETRY_AFTER}; null when it is neither. */
  static Duration retryAfter(String s) {
    Duration d;
    if (!s.isEmpty() && s.chars().allMatch(c -> c >= '0' && c <= '9')) {
      d = s.length() > 18 ? MAX_RETRY_AFTER : Duration.ofSeconds(Long.parseLong(s));
    } else {
      try {
        d = Duration.between(Instant.now(), ZonedDateTime.parse(s, DateTimeFormatter.RFC_1123_DATE_TIME));
      } catch (DateTimeException e) {
        return null;
      }
    }
    return d.isNegative() ? Duration.ZERO : d.compareTo(MAX_RETRY_AFTER) > 0 ? MAX_RETRY_AFTER : d;
  }

  /** Half of a wait is random, so that clients that were refused together do not come back together. */
  static long backoff(int n, Duration after) {
    long wait = Math.min(FIRST_WAIT_MILLIS << Math.min(n, 10), MAX_WAIT_MILLIS);
    wait = wait / 2 + ThreadLocalRandom.current().nextLong(wait / 2);
    return after == null
        ? wait
        : Math.max(wait, after.toMillis() + ThreadLocalRandom.current().nextLong(after.toMillis() / 10 + 1));
  }

  private static void pause(long millis, ScheduleException last) {
    try {
      Thread.sleep(millis);
    } catch (InterruptedException e) {
      Thread.currentThread().interrupt();
      throw last;
    }
  }
}
