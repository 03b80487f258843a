package dev.reschedule.testing;

import java.io.IOException;
import java.net.ServerSocket;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;

/** The real adapter, standalone. The environment variable ADAPTER_BINARY names its program. */
public final class Adapter implements AutoCloseable {

  /** Where sources have their paths. */
  public final String address;

  private final Process process;

  /**
   * Starts an adapter with the sources of a file.
   *
   * @param dir where it keeps its files
   * @param tokens the file of the tokens that it takes; null: it asks for none
   */
  public Adapter(Path dir, String manifests, Path tokens) throws Exception {
    String binary = program("ADAPTER_BINARY");
    Path sources = Files.writeString(dir.resolve("sources.yaml"), manifests);
    int port = freePort();
    int admin = freePort();
    address = "http://127.0.0.1:" + port;
    List<String> command =
        new ArrayList<>(
            List.of(binary, "--standalone", "--sources", sources.toString(), "--data-dir",
                Files.createDirectory(dir.resolve("data")).toString(), "--listen", "127.0.0.1:" + port,
                "--admin-listen", "127.0.0.1:" + admin));
    if (tokens != null) {
      command.addAll(List.of("--token-file", tokens.toString()));
    }
    process =
        new ProcessBuilder(command)
            .redirectErrorStream(true)
            .redirectOutput(dir.resolve("adapter.log").toFile())
            .start();
    HttpRequest ready =
        HttpRequest.newBuilder(URI.create("http://127.0.0.1:" + admin + "/readyz"))
            .timeout(Duration.ofSeconds(5))
            .build();
    long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);
    while (true) {
      try {
        if (HttpClient.newHttpClient().send(ready, HttpResponse.BodyHandlers.ofString()).statusCode() == 200) {
          return;
        }
      } catch (IOException e) {
        // It does not listen yet.
      }
      if (!process.isAlive() || System.nanoTime() > end) {
        close();
        throw new IllegalStateException("the adapter is not ready: " + Files.readString(dir.resolve("adapter.log")));
      }
      TimeUnit.MILLISECONDS.sleep(50);
    }
  }

  /** Returns the path of a program, which make java sets. */
  static String program(String variable) {
    String path = System.getenv(variable);
    if (path == null) {
      throw new IllegalStateException(variable + " is not set: run the tests with make java");
    }
    return path;
  }

  /**
   * Returns a port that is free now. It lies below the ports that systems give to outgoing
   * connections, so that no connection takes it before the program listens.
   */
  public static int freePort() {
    for (int i = 0; i < 100; i++) {
      try (ServerSocket s = new ServerSocket(ThreadLocalRandom.current().nextInt(15000, 30000))) {
        return s.getLocalPort();
      } catch (IOException e) {
        // It is taken.
      }
    }
    throw new IllegalStateException("no port is free");
  }

  @Override
  public void close() throws InterruptedException {
    process.destroy();
    if (!process.waitFor(20, TimeUnit.SECONDS)) {
      process.destroyForcibly();
    }
  }
}
