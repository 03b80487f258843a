package dev.reschedule.josdk;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;

import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

import io.fabric8.kubernetes.client.KubernetesClient;
import io.javaoperatorsdk.operator.OperatorException;
import io.javaoperatorsdk.operator.processing.event.rate.LinearRateLimiter;

import dev.reschedule.client.Answer;
import dev.reschedule.client.Request;
import dev.reschedule.client.Schedule;
import dev.reschedule.client.Schedules;
import dev.reschedule.testing.Adapter;

/** The retries that the source counts. */
@Timeout(150)
class RetryBySourceTest {

  @TempDir Path dir;
  private final List<String> runs = new CopyOnWriteArrayList<>();
  private final AtomicReference<LinearRateLimiter> limiter = new AtomicReference<>();
  private KubernetesClient client;
  private RescheduleOperator operator;
  private Adapter adapter;

  @AfterEach
  void stop() throws Exception {
    if (operator != null) {
      operator.stop();
    }
    if (adapter != null) {
      adapter.close();
    }
  }

  private RescheduleOperator operator(String ns) throws Exception {
    client = Kube.get().client();
    RescheduleOperator o =
        new RescheduleOperator(c -> c.withKubernetesClient(client).withCloseClientOnStop(false)).withRetryBySource();
    o.<Site>register(
        new SiteReconciler((object, run) -> runs.add(run)),
        c -> {
          c.settingNamespace(ns);
          if (limiter.get() != null) {
            c.withRateLimiter(limiter.get());
          }
        });
    return o;
  }

  /** A new operator, as after a cold start. */
  private void restart(String ns) throws Exception {
    if (operator != null) {
      operator.stop();
    }
    operator = operator(ns).withoutServer();
    operator.start();
  }

  private void create(String ns, String mode) {
    client.resource(Site.of(ns, mode, mode)).create();
  }

  private Answer deliver(String key, int attempt, String data) {
    return Due.deliver(operator, key, attempt, data).join();
  }

  /** A failed reconcile is a failed delivery with the delay of the Retry, also in a new process; the last is refused. */
  @Test
  void aFailedRunIsAFailedDelivery() throws Exception {
    String ns = Kube.get().namespace("by-source");
    for (String[] want :
        new String[][] {{"503", "300ms"}, {"503", "300ms"}, {"503", "450ms"}, {"422", "36000000ms"}}) {
      restart(ns);
      if (runs.isEmpty()) {
        create(ns, "exhaust");
      }
      Answer a = deliver("Site/" + ns + "/exhaust", runs.size(), "");
      assertEquals(want[0], String.valueOf(a.status()));
      DeliverTest.assertWait(want[1], a);
      assertNull(a.headers().get("Ce-Type"), "the source keeps its event");
    }
    assertTrue(runs.get(3).contains("retry=3(last)"), runs.toString());
  }

  /** An answer that is no failure resets the source's counter, so it carries the number of retries itself. */
  @Test
  void aWaitBetweenTwoAttemptsLosesNoRetry() throws Exception {
    String ns = Kube.get().namespace("by-source-limited");
    limiter.set(new LinearRateLimiter(Duration.ofMinutes(5), 2)); // the finalizer is one
    restart(ns);
    create(ns, "exhaust");
    assertEquals(503, deliver("Site/" + ns + "/exhaust", 0, "").status());
    Answer limited = deliver("Site/" + ns + "/exhaust", 1, "");
    assertEquals(200, limited.status());
    limiter.set(null);
    restart(ns);
    DeliverTest.assertWait("300ms", deliver("Site/" + ns + "/exhaust", 0, limited.text()));
    assertEquals(List.of("gen=1 retry=- owned=none", "gen=1 retry=1 owned=none"), runs);
  }

  /** Two controllers of a kind have one counter of attempts between them. */
  @Test
  void oneControllerForAKind() throws Exception {
    operator = operator("default").withoutServer();
    operator.<Site>register(new SiteReconciler((o, r) -> {}), c -> c.withName("another"));
    assertThrows(OperatorException.class, operator::start);
  }

  /** With the real adapter: the runs are as resident, and the source shows each failure and keeps what is given up. */
  @Test
  void theSourceShowsFailures() throws Exception {
    String ns = Kube.get().namespace("by-source-real");
    operator = operator(ns).withPort(0);
    operator.start();
    adapter =
        new Adapter(
            dir,
            """
            apiVersion: sources.reschedule.dev/v1alpha1
            kind: RescheduleSource
            metadata: {name: test, namespace: ops}
            spec: {sink: {uri: "http://127.0.0.1:%d/"}, delivery: {backoffDelay: PT60S}}
            """
                .formatted(operator.port()),
            null);
    Schedules source = Schedules.at(adapter.address + "/ops/test");
    create(ns, "retry");
    create(ns, "exhaust");
    source.schedule("Site/" + ns + "/retry", Request.now());
    Schedule done = settled(source, "Site/" + ns + "/retry", 3);
    assertEquals(
        List.of("gen=1 retry=- owned=none", "gen=1 retry=1 owned=none", "gen=1 retry=2 owned=none"), runs);
    assertEquals(0, done.attempt());
    runs.clear();
    source.schedule("Site/" + ns + "/exhaust", Request.now());
    Schedule again = settled(source, "Site/" + ns + "/exhaust", 4);
    assertTrue(runs.get(3).contains("retry=3(last)"), runs.toString());
    assertEquals(1, source.counts().deadLetters());
    assertEquals(0, again.attempt());
    assertTrue(again.dueAt().isAfter(Instant.now().plusSeconds(9 * 3600)), "JOSDK's maximal interval: " + again.dueAt());
  }

  private Schedule settled(Schedules source, String key, int wanted) throws InterruptedException {
    long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(40); // less than the back-off of the source
    while (true) {
      Schedule s = source.get(key);
      if (runs.size() == wanted && !s.inFlight() && s.nextAttemptAt() == null) {
        return s;
      }
      assertTrue(System.nanoTime() < end, s + " " + runs);
      TimeUnit.MILLISECONDS.sleep(20);
    }
  }
}
