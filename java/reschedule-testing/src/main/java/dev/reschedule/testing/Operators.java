package dev.reschedule.testing;

import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;

/** A sink that starts an operator as a process for every delivery, and ends it after its answer. */
public final class Operators implements AutoCloseable {

  /** Headers that the client sets itself. */
  private static final Set<String> OWN = Set.of("host", "connection", "content-length");

  private static final Pattern SERVED = Pattern.compile("Deliveries are served on port (\\d+)");

  private final Path dir;
  private final List<String> command;
  private final Map<String, String> environment;
  private final HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", 0), 0);
  private final ExecutorService pool = Executors.newFixedThreadPool(2);
  private final HttpClient client = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
  private final AtomicInteger started = new AtomicInteger();

  /**
   * Starts the sink.
   *
   * @param dir where logs go
   * @param main the arguments of java
   * @param environment the environment of the processes; PORT is added, as 0
   */
  public Operators(Path dir, List<String> main, Map<String, String> environment) throws IOException {
    this.dir = dir;
    this.command = java(main);
    this.environment = environment;
    server.setExecutor(pool);
    server.createContext("/", this::serve);
    server.start();
  }

  /** Returns the command of an operator that starts quickly. */
  public static List<String> java(List<String> main) {
    List<String> all =
        new ArrayList<>(
            List.of(System.getProperty("java.home") + "/bin/java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"));
    all.addAll(main);
    return all;
  }

  /** Returns the port of the sink. */
  public int port() {
    return server.getAddress().getPort();
  }

  /** Returns how many processes there were. */
  public int started() {
    return started.get();
  }

  /** Waits until an operator with PORT=0 has written into its log where it listens, and returns the port. */
  public static int port(Process p, Path log) throws IOException {
    long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(90);
    while (true) {
      Matcher served = SERVED.matcher(Files.readString(log));
      if (served.find()) {
        return Integer.parseInt(served.group(1));
      }
      if (!p.isAlive() || System.nanoTime() > end) {
        throw new IOException("the operator does not listen: " + Files.readString(log));
      }
      try {
        TimeUnit.MILLISECONDS.sleep(20);
      } catch (InterruptedException e) {
        throw new IOException(e);
      }
    }
  }

  private void serve(HttpExchange x) throws IOException {
    Path log = dir.resolve("operator-" + started.incrementAndGet() + ".log");
    ProcessBuilder b = new ProcessBuilder(command).redirectErrorStream(true).redirectOutput(log.toFile());
    b.environment().putAll(environment);
    b.environment().put("PORT", "0");
    Process p = b.start();
    try (x) {
      int port = port(p, log);
      HttpRequest.Builder request =
          HttpRequest.newBuilder(URI.create("http://127.0.0.1:" + port + "/"))
              .POST(HttpRequest.BodyPublishers.ofByteArray(x.getRequestBody().readAllBytes()));
      x.getRequestHeaders()
          .forEach(
              (name, values) -> {
                if (!OWN.contains(name.toLowerCase(java.util.Locale.ROOT))) {
                  values.forEach(v -> request.header(name, v));
                }
              });
      HttpResponse<byte[]> answer = client.send(request.build(), HttpResponse.BodyHandlers.ofByteArray());
      answer.headers().map()
          .forEach(
              (name, values) -> {
                if (!OWN.contains(name) && !name.equals("date")) {
                  x.getResponseHeaders().put(name, values);
                }
              });
      x.sendResponseHeaders(answer.statusCode(), answer.body().length == 0 ? -1 : answer.body().length);
      x.getResponseBody().write(answer.body());
    } catch (InterruptedException e) {
      throw new IOException(e);
    } finally {
      p.destroyForcibly();
    }
  }

  @Override
  public void close() {
    server.stop(0);
    pool.shutdownNow();
  }
}
