package dev.reschedule.josdk;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTimeoutPreemptively;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.io.InputStream;
import java.net.Socket;
import java.net.SocketException;
import java.net.SocketTimeoutException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

import dev.reschedule.client.Answer;

/** The bounds of the operator's door. */
@Timeout(60)
class DeliveryServerTest {

  private static final HttpClient HTTP = HttpClient.newHttpClient();

  private DeliveryServer server;

  @AfterEach
  void stop() {
    server.stop();
  }

  private void start(DeliveryServer.Deliveries operator) {
    server = DeliveryServer.start(0, null, operator);
  }

  private HttpRequest.Builder request() {
    return HttpRequest.newBuilder(URI.create("http://127.0.0.1:" + server.port() + "/"));
  }

  private HttpResponse<String> send(HttpRequest.Builder b) throws Exception {
    return HTTP.send(b.build(), HttpResponse.BodyHandlers.ofString());
  }

  private static HttpRequest.BodyPublisher bytes(int n) {
    return HttpRequest.BodyPublishers.ofByteArray(new byte[n]);
  }

  /** Probes are answered, other methods refused, and an answer arrives whole. */
  @Test
  void methodsHaveTheirAnswers() throws Exception {
    start((h, b) -> CompletableFuture.completedFuture(Answer.text(200, "got " + b.length).with("Reschedule-After", "5ms")));
    assertEquals(200, send(request().GET()).statusCode());
    assertEquals(405, send(request().PUT(bytes(1))).statusCode());
    HttpResponse<String> r = send(request().POST(bytes(300_000)));
    assertEquals("got 300000", r.body());
    assertEquals("5ms", r.headers().firstValue("Reschedule-After").orElse(""));
  }

  /** A body that is too large is refused, whether its length is announced or not. */
  @Test
  void largeBodiesAreRefused() throws Exception {
    start((h, b) -> CompletableFuture.completedFuture(Answer.done()));
    int large = DeliveryServer.MAX_BODY + 1;
    assertEquals(413, statusOf("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: " + large + "\r\n\r\n"));
    assertEquals(
        413, send(request().POST(HttpRequest.BodyPublishers.ofInputStream(() -> new Zeros(large)))).statusCode());
    assertEquals(204, send(request().POST(bytes(10))).statusCode());
  }

  private static final class Zeros extends InputStream {
    private int left;

    Zeros(int n) {
      left = n;
    }

    @Override
    public int read() {
      return left-- > 0 ? 0 : -1;
    }
  }

  private int statusOf(String head) throws IOException {
    try (Socket s = new Socket("127.0.0.1", server.port())) {
      s.getOutputStream().write(head.getBytes(StandardCharsets.US_ASCII));
      byte[] line = s.getInputStream().readNBytes(12);
      return Integer.parseInt(new String(line, 9, 3, StandardCharsets.US_ASCII));
    }
  }

  /** A sender that stops in the middle of a body is cut off, and costs no thread for longer. */
  @Test
  void slowBodiesAreCutOff() throws Exception {
    start((h, b) -> CompletableFuture.completedFuture(Answer.done()));
    List<Socket> slow = new ArrayList<>();
    for (int i = 0; i < 100; i++) {
      Socket s = new Socket("127.0.0.1", server.port());
      s.getOutputStream().write("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nx".getBytes(StandardCharsets.US_ASCII));
      slow.add(s);
    }
    assertEquals(204, send(request().POST(bytes(10))).statusCode());
    for (Socket s : slow) {
      s.setSoTimeout(30_000);
      assertTrue(isCutOff(s));
      s.close();
    }
  }

  /** A time-out of the read is an exception: the sender was not cut off. */
  private static boolean isCutOff(Socket s) throws IOException {
    try {
      return s.getInputStream().read() < 0;
    } catch (SocketTimeoutException e) {
      throw e;
    } catch (SocketException e) {
      return true; // reset
    }
  }

  /** An Error is a 503, thrown at once or later; the server goes on. */
  @Test
  void errorsAreAnswered() throws Exception {
    start(
        (h, b) -> {
          throw new StackOverflowError("test");
        });
    assertEquals(503, send(request().POST(bytes(10))).statusCode());
    assertEquals(200, send(request().GET()).statusCode());
  }

  /** A sender that does not read its answer does not hold up other senders. */
  @Test
  void unreadAnswersDelayNoOtherSender() throws Exception {
    CompletableFuture<Answer> run = new CompletableFuture<>();
    CountDownLatch in = new CountDownLatch(1);
    start(
        (h, b) -> {
          in.countDown();
          return run;
        });
    try (Socket s = new Socket("127.0.0.1", server.port())) {
      s.getOutputStream().write("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n".getBytes(StandardCharsets.US_ASCII));
      assertTrue(in.await(30, TimeUnit.SECONDS));
      String large = "x".repeat(64 << 20); // more than the buffers of a connection
      assertTimeoutPreemptively(Duration.ofSeconds(20), () -> run.complete(Answer.text(200, large)));
    }
  }

  /** Runs that are under way cost no thread; more than the bound get a 503, and the bound is given back. */
  @Test
  void deliveriesAreBounded() throws Exception {
    CompletableFuture<Answer> all = new CompletableFuture<>();
    CountDownLatch in = new CountDownLatch(DeliveryServer.MAX_DELIVERIES);
    start(
        (h, b) -> {
          in.countDown();
          return all;
        });
    List<CompletableFuture<HttpResponse<String>>> sent = new ArrayList<>();
    for (int i = 0; i < DeliveryServer.MAX_DELIVERIES; i++) {
      sent.add(HTTP.sendAsync(request().POST(bytes(10)).build(), HttpResponse.BodyHandlers.ofString()));
    }
    assertTrue(in.await(30, TimeUnit.SECONDS), in.getCount() + " are missing");
    HttpResponse<String> busy = send(request().POST(bytes(10)));
    assertEquals(503, busy.statusCode());
    assertEquals("1", busy.headers().firstValue("Retry-After").orElse(""));
    all.complete(Answer.done());
    for (var s : sent) {
      assertEquals(204, s.get().statusCode());
    }
    assertEquals(204, send(request().POST(bytes(10))).statusCode());
    assertEquals(Map.of(), Answer.done().headers());
  }
}
