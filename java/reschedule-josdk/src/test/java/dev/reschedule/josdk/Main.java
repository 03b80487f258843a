package dev.reschedule.josdk;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.time.Duration;

import io.javaoperatorsdk.operator.Operator;

/** The operator as a process: resident or not, and nothing else differs. */
final class Main {

  private Main() {}

  public static void main(String[] args) {
    Path file = Path.of(System.getenv("RECORD"));
    Recorder recorder =
        (object, run) -> {
          try {
            Files.writeString(file, object + " " + run + "\n", StandardOpenOption.CREATE, StandardOpenOption.APPEND);
          } catch (IOException e) {
            throw new UncheckedIOException(e);
          }
        };
    Operator operator = System.getenv("RESIDENT") != null ? new Operator() : new RescheduleOperator();
    operator.<Site>register(new SiteReconciler(recorder), c -> c.settingNamespace(System.getenv("WATCH_NAMESPACE")));
    operator.installShutdownHook(Duration.ofSeconds(20));
    operator.start();
  }
}
