package dev.reschedule.josdk;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.ServerSocket;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.concurrent.TimeUnit;

/** The real adapter, standalone. The environment variable ADAPTER_BINARY names its program. */
final class Adapter implements AutoCloseable {

  final String address;
  private final Process process;

  Adapter(Path dir, String manifests) throws Exception {
    String binary = System.getenv("ADAPTER_BINARY");
    if (binary == null) {
      throw new IllegalStateException("ADAPTER_BINARY is not set: run the tests with make java");
    }
    Path sources = Files.writeString(dir.resolve("sources.yaml"), manifests);
    int port = freePort();
    int admin = freePort();
    address = "http://127.0.0.1:" + port;
    process =
        new ProcessBuilder(
                binary, "--standalone", "--sources", sources.toString(), "--data-dir",
                Files.createDirectory(dir.resolve("data")).toString(), "--listen", "127.0.0.1:" + port,
                "--admin-listen", "127.0.0.1:" + admin)
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

  static int freePort() {
    try (ServerSocket s = new ServerSocket(0)) {
      return s.getLocalPort();
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    }
  }

  @Override
  public void close() throws InterruptedException {
    process.destroy();
    if (!process.waitFor(20, TimeUnit.SECONDS)) {
      process.destroyForcibly();
    }
  }
}
