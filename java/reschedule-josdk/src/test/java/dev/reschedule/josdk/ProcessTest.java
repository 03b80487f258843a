package dev.reschedule.josdk;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.concurrent.TimeUnit;

import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

import dev.reschedule.client.Request;
import dev.reschedule.client.ScheduleException;
import dev.reschedule.client.Schedules;
import dev.reschedule.testing.Adapter;
import dev.reschedule.testing.Operators;

/** The operator as a process that is killed and asked to stop in the middle of a run, behind the real adapter. */
@Timeout(180)
class ProcessTest {

  @TempDir Path dir;
  private int port; // the same for each process; any for the first
  private Adapter adapter;
  private Process process;

  @AfterEach
  void stop() throws Exception {
    if (process != null) {
      process.destroyForcibly().waitFor();
    }
    if (adapter != null) {
      adapter.close();
    }
  }

  private void launch(String ns) throws Exception {
    ProcessBuilder b =
        new ProcessBuilder(
            Operators.java(List.of("-cp", System.getProperty("java.class.path"), "dev.reschedule.josdk.Main")));
    b.environment().putAll(Kube.get().environment());
    b.environment().put("RECORD", dir.resolve("record").toString());
    b.environment().put("WATCH_NAMESPACE", ns);
    b.environment().put("PORT", String.valueOf(port));
    Path log = dir.resolve("operator.log");
    process = b.redirectErrorStream(true).redirectOutput(log.toFile()).start();
    port = Operators.port(process, log);
  }

  private Schedules begin(String ns) throws Exception {
    Kube.get().namespace(ns);
    launch(ns);
    adapter =
        new Adapter(
            dir,
            """
            apiVersion: sources.reschedule.dev/v1alpha1
            kind: RescheduleSource
            metadata: {name: test, namespace: ops}
            spec: {sink: {uri: "http://127.0.0.1:%d/"}, delivery: {backoffDelay: PT0.2S, backoffPolicy: linear, backoffMax: PT2S}}
            """
                .formatted(port),
            null);
    Kube.get().client.resource(Site.of(ns, "slow", "slow")).create();
    Schedules source = Schedules.at(adapter.address + "/ops/test");
    source.schedule("Site/" + ns + "/slow", Request.now());
    await(1);
    return source;
  }

  private List<String> record() throws IOException {
    Path file = dir.resolve("record");
    return Files.exists(file) ? Files.readAllLines(file) : List.of();
  }

  private void await(int lines) throws Exception {
    long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);
    while (record().size() < lines) {
      assertTrue(System.nanoTime() < end, record() + Files.readString(dir.resolve("operator.log")));
      TimeUnit.MILLISECONDS.sleep(20);
    }
  }

  /** A process that is killed in the middle of a run loses nothing: the next process runs it again. */
  @Test
  void killedProcessLosesNothing() throws Exception {
    String ns = "process-killed";
    begin(ns);
    process.destroyForcibly().waitFor();
    launch(ns);
    await(3);
    assertEquals(
        List.of("slow gen=1 retry=- owned=none", "slow gen=1 retry=- owned=none", "slow end"), record());
  }

  /** A process that is asked to stop ends its run and answers it: nothing is run twice. */
  @Test
  void stoppedProcessEndsItsRun() throws Exception {
    String ns = "process-stopped";
    Schedules source = begin(ns);
    process.destroy();
    assertTrue(process.waitFor(60, TimeUnit.SECONDS));
    assertEquals(List.of("slow gen=1 retry=- owned=none", "slow end"), record());
    // The answer asked for JOSDK's maximal interval, and was not a failure.
    assertEquals(0, source.get("Site/" + ns + "/slow").attempt());
    assertTrue(source.get("Site/" + ns + "/slow").dueAt().isAfter(java.time.Instant.now().plusSeconds(3600)));
    assertThrows(ScheduleException.NotFound.class, () -> source.get("Site/" + ns + "/other"));
  }
}
