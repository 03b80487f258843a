package dev.reschedule.josdk;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.SynchronousQueue;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Consumer;

import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.function.Executable;

import io.fabric8.kubernetes.client.KubernetesClient;
import io.javaoperatorsdk.operator.api.config.ConfigurationServiceOverrider;
import io.javaoperatorsdk.operator.api.config.ControllerConfigurationOverrider;
import io.javaoperatorsdk.operator.api.reconciler.Context;
import io.javaoperatorsdk.operator.api.reconciler.ControllerConfiguration;
import io.javaoperatorsdk.operator.api.reconciler.Reconciler;
import io.javaoperatorsdk.operator.api.reconciler.UpdateControl;
import io.javaoperatorsdk.operator.processing.retry.RetryExecution;

import dev.reschedule.client.Answer;

/** What goes wrong in and around a reconciler is a failed delivery, not a hang, and the next delivery runs. */
@Timeout(150)
class FaultTest {

  private interface Run {
    UpdateControl<Site> of(Site site);
  }

  @ControllerConfiguration(name = "faulty")
  private static final class Faulty implements Reconciler<Site> {
    volatile Run run = s -> UpdateControl.noUpdate();

    @Override
    public UpdateControl<Site> reconcile(Site site, Context<Site> context) {
      return run.of(site);
    }
  }

  private static final AtomicInteger namespaces = new AtomicInteger();

  private final Faulty reconciler = new Faulty();
  private RescheduleOperator operator;
  private String key;

  private void start(
      Consumer<ConfigurationServiceOverrider> service, Consumer<ControllerConfigurationOverrider<Site>> controller)
      throws Exception {
    KubernetesClient client = Kube.get().client();
    String ns = Kube.get().namespace("fault-" + namespaces.incrementAndGet());
    operator = new RescheduleOperator(service.andThen(o -> o.withKubernetesClient(client))).withoutServer();
    operator.<Site>register(reconciler, controller.andThen(c -> c.settingNamespace(ns)));
    operator.start();
    client.resource(Site.of(ns, "a", "")).create();
    key = "Site/" + ns + "/a";
  }

  @AfterEach
  void stop() {
    if (operator != null) {
      operator.stop();
    }
  }

  private Answer deliver(String data) throws Exception {
    return Due.deliver(operator, key, 0, data).get(20, TimeUnit.SECONDS);
  }

  private void assertRecovers() throws Exception {
    reconciler.run = s -> UpdateControl.noUpdate();
    DeliverTest.assertWait("36000000ms", deliver(""));
  }

  /** Errors of the JVM, as it throws them. */
  @Test
  void errorsOfTheJvmAreAnswered() throws Exception {
    start(o -> {}, c -> {});
    for (Run run : new Run[] {this::deep, FaultTest::large}) {
      reconciler.run = run;
      assertEquals(503, deliver("").status());
    }
    assertRecovers();
  }

  private UpdateControl<Site> deep(Site s) {
    return deep(s).rescheduleAfter(1);
  }

  private static UpdateControl<Site> large(Site s) {
    return UpdateControl.<Site>noUpdate().rescheduleAfter(new byte[Integer.MAX_VALUE].length);
  }

  /** A wait that no timer takes, such as the time until an instant that has passed. */
  @Test
  void aNegativeWaitIsAnswered() throws Exception {
    start(o -> {}, c -> {});
    reconciler.run = s -> UpdateControl.<Site>noUpdate().rescheduleAfter(-5);
    assertEquals(503, deliver("").status());
    assertEquals(503, deliver("").status());
    assertRecovers();
  }

  /** A wait for ever is a hundred years, not a loop. */
  @Test
  void aWaitForEverIsNoLoop() throws Exception {
    start(o -> {}, c -> {});
    reconciler.run = s -> UpdateControl.<Site>noUpdate().rescheduleAfter(Long.MAX_VALUE);
    DeliverTest.assertWait("3153600000000ms", deliver(""));
  }

  /** A Retry of the operator's own that throws, after the run. */
  @Test
  void aRetryThatThrowsIsAnswered() throws Exception {
    start(o -> {}, c -> c.withRetry(Broken::new));
    reconciler.run = s -> {
      throw new IllegalStateException("the run");
    };
    assertEquals(503, deliver("").status());
    assertRecovers();
  }

  private static final class Broken implements RetryExecution {
    @Override
    public Optional<Long> nextDelay() {
      throw new IllegalStateException("the retry");
    }

    /** JOSDK 5.4 and later ask for it. */
    public Optional<Duration> remainingDurationUntilNextRetry() {
      return Optional.empty();
    }

    @Override
    public int getAttemptCount() {
      return 0;
    }

    @Override
    public boolean isLastAttempt() {
      return false;
    }
  }

  /** Takes the thread of the runs until the latch is open. */
  private static CountDownLatch occupy(ThreadPoolExecutor one) {
    CountDownLatch end = new CountDownLatch(1);
    one.execute(
        () -> {
          try {
            end.await();
          } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
          }
        });
    return end;
  }

  private static ThreadPoolExecutor queue() {
    return new ThreadPoolExecutor(1, 1, 1, TimeUnit.SECONDS, new LinkedBlockingQueue<>());
  }

  /** Begins a delivery whose run waits for the thread. */
  private CompletableFuture<Answer> queued(ThreadPoolExecutor one) throws InterruptedException {
    CompletableFuture<Answer> first = Due.deliver(operator, key, 0, "");
    for (int i = 0; i < 200 && one.getQueue().isEmpty(); i++) {
      Thread.sleep(50);
    }
    return first;
  }

  private Site object() {
    return Site.of(key.split("/")[1], "a", "");
  }

  /** No thread for the run, as with an executor of the operator's own, or at the bound of the system. */
  @Test
  void aRunWithoutAThreadIsAnswered() throws Exception {
    ThreadPoolExecutor one = new ThreadPoolExecutor(0, 1, 1, TimeUnit.SECONDS, new SynchronousQueue<>());
    start(o -> o.withExecutorService(one), c -> {});
    CountDownLatch end = occupy(one);
    assertEquals(503, deliver("").status());
    one.setMaximumPoolSize(2);
    assertRecovers();
    end.countDown();
  }

  /** An object that is deleted while its run waits for a thread: JOSDK skips the run and does not say so. */
  @Test
  void anObjectGoneBeforeItsRunIsAnswered() throws Exception {
    ThreadPoolExecutor one = queue();
    start(o -> o.withExecutorService(one), c -> {});
    CountDownLatch end = occupy(one);
    var first = queued(one);
    Kube.get().client().resource(object()).delete();
    var second = Due.deliver(operator, key, 0, "");
    Thread.sleep(1000); // it has read that the object is gone, and joined the first one
    end.countDown();
    for (var answer : List.of(first, second)) {
      int status = answer.get(20, TimeUnit.SECONDS).status();
      assertTrue(status == 503 || status == 204, "answered with " + status);
    }
    assertEquals("never", deliver("").headers().get("Reschedule-After"));
  }

  /** The same where a filter drops the deletion: JOSDK before 5.5.1 takes the key for under processing from then on. */
  @Test
  void aKeyDoesNotStayUnderProcessing() throws Exception {
    ThreadPoolExecutor one = queue();
    AtomicBoolean accepted = new AtomicBoolean(true);
    start(o -> o.withExecutorService(one), c -> c.withGenericFilter(s -> accepted.get()));
    CountDownLatch end = occupy(one);
    var first = queued(one);
    accepted.set(false);
    KubernetesClient client = Kube.get().client();
    client.resource(object()).delete();
    assertEquals("never", deliver("").headers().get("Reschedule-After"));
    end.countDown();
    assertTrue(first.get(20, TimeUnit.SECONDS).status() < 300);
    accepted.set(true);
    client.resource(object()).create();
    assertRecovers();
  }

  /** Data that is not the operator's own, which YAML would follow without end. */
  @Test
  void anyDataIsTaken() throws Exception {
    start(o -> {}, c -> {});
    for (String data :
        new String[] {"- ".repeat(100_000), "&a [*a]", "{", "{\"a\":".repeat(100_000), "{\"controllers\":[0]}"}) {
      DeliverTest.assertWait("36000000ms", deliver(data));
    }
  }

  /** A setting that cannot be meant is refused, by its name. */
  @Test
  void settingsAreChecked() {
    assertEquals(8080, RescheduleOperator.port(null));
    assertRefused("PORT is not a number: tcp://10.0.0.1:80", () -> RescheduleOperator.port("tcp://10.0.0.1:80"));
    operator = new RescheduleOperator();
    assertRefused("withTimeout: no delivery is done in PT0S", () -> operator.withTimeout(Duration.ZERO));
  }

  private static void assertRefused(String message, Executable call) {
    assertEquals(message, assertThrows(IllegalArgumentException.class, call).getMessage());
  }
}
