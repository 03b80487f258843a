package dev.reschedule.josdk;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Consumer;

import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestInfo;
import org.junit.jupiter.api.Timeout;

import io.fabric8.kubernetes.api.model.ConfigMapBuilder;
import io.fabric8.kubernetes.api.model.Namespaced;
import io.fabric8.kubernetes.client.CustomResource;
import io.fabric8.kubernetes.client.KubernetesClient;
import io.fabric8.kubernetes.model.annotation.Group;
import io.fabric8.kubernetes.model.annotation.Version;
import io.javaoperatorsdk.operator.api.config.ControllerConfigurationOverrider;
import io.javaoperatorsdk.operator.api.reconciler.Context;
import io.javaoperatorsdk.operator.api.reconciler.ControllerConfiguration;
import io.javaoperatorsdk.operator.api.reconciler.Reconciler;
import io.javaoperatorsdk.operator.api.reconciler.UpdateControl;
import io.javaoperatorsdk.operator.processing.event.rate.LinearRateLimiter;

import dev.reschedule.client.Answer;

/** Single deliveries against a real API server, without an adapter between. */
@Timeout(150)
class DeliverTest {

  private static final AtomicInteger namespaces = new AtomicInteger();

  private final List<String> runs = new CopyOnWriteArrayList<>();
  private RescheduleOperator operator;
  private KubernetesClient client;
  private String ns;

  private void start(Consumer<ControllerConfigurationOverrider<Site>> configure) throws Exception {
    client = Kube.get().client();
    ns = Kube.get().namespace("deliver-" + namespaces.incrementAndGet());
    restart(configure);
  }

  /** A new operator, as after a cold start. */
  private void restart(Consumer<ControllerConfigurationOverrider<Site>> configure) {
    if (operator != null) {
      operator.stop();
    }
    operator =
        new RescheduleOperator(o -> o.withKubernetesClient(client).withCloseClientOnStop(false)).withoutServer();
    operator.<Site>register(
        new SiteReconciler((object, run) -> runs.add(object + " " + run)),
        c -> {
          c.settingNamespace(ns);
          configure.accept(c);
        });
    operator.start();
  }

  @AfterEach
  void stop(TestInfo info) {
    if (operator != null) {
      operator.stop();
    }
  }

  private Site create(String name, String mode) {
    return client.resource(Site.of(ns, name, mode)).create();
  }

  private void change(String name) {
    client.resources(Site.class).inNamespace(ns).withName(name).edit(s -> {
      s.getSpec().content = "new";
      return s;
    });
  }

  private static final class Headers extends HashMap<String, Collection<String>> {
    private static final long serialVersionUID = 1L;

    Headers with(String name, String value) {
      put("Ce-" + name, List.of(value));
      return this;
    }
  }

  private static Headers event(String type, String key) {
    return new Headers().with("specversion", "1.0").with("id", "1").with("source", "/s").with("type", type)
        .with("reschedulekey", key);
  }

  private Headers changed(String verb, String name) {
    return event("dev.knative.apiserver.ref." + verb, "Site/" + ns + "/" + name).with("kind", "Site")
        .with("namespace", ns).with("name", name);
  }

  private Headers cause(String name, String cause) {
    return event("dev.reschedule.due", "Site/" + ns + "/" + name).with("reschedulecause", cause);
  }

  private CompletableFuture<Answer> deliver(Headers h, String body) {
    return operator.deliver(h, body.getBytes(StandardCharsets.UTF_8)).toCompletableFuture();
  }

  private Answer deliver(Headers h) {
    return deliver(h, "").join();
  }

  /** The wait is as JOSDK has it, less the moments between its decision and the answer. */
  static void assertWait(String want, Answer a) {
    String got = String.valueOf(a.headers().get("Reschedule-After"));
    long least = Long.parseLong(want.replace("ms", "")) - 100;
    assertTrue(got.equals(want) || got.endsWith("ms") && Long.parseLong(got.replace("ms", "")) >= least
        && Long.parseLong(got.replace("ms", "")) <= least + 100, got + ", want " + want);
  }

  /** What no repetition can cure is refused, and says why. */
  @Test
  void whatIsNoDeliveryIsRefused() throws Exception {
    start(c -> {});
    for (Headers h :
        List.of(new Headers(), event("t", ""), event("t", "a"), event("t", "a/b/c/d"), event("t", "Site/x/"),
            event("t", "Site//a"), event("t", "Site/x/."), event("t", "Site/../a"), event("t", "Site/x/ "),
            event("t", "Site/x/a?watch=true"), event("t", "Site/x/a#b"), event("t", "Site/x/a%252Fstatus"),
            event("t", "Other/a/b").with("kind", "Site"))) {
      Answer a = deliver(h);
      assertEquals(400, a.status(), h.toString());
      assertFalse(a.text().isEmpty());
    }
    assertEquals(List.of(), runs);
  }

  /** An update without a new generation runs nothing in a process that knows the object, and leaves its timer. */
  @Test
  void filtersJudgeChanges() throws Exception {
    start(c -> c.withReconciliationMaxInterval(Duration.ofHours(3)));
    create("a", "watch");
    Answer first = deliver(changed("add", "a"));
    assertEquals(200, first.status());
    assertWait("10800000ms", first);
    assertEquals(1, runs.size());
    Answer dropped = deliver(changed("update", "a"));
    assertEquals(1, runs.size());
    long left = Long.parseLong(dropped.headers().get("Reschedule-After").replace("ms", ""));
    assertTrue(left > 10_000_000 && left <= 10_800_000, "the rest of the timer: " + left);
    change("a");
    deliver(changed("update", "a"));
    assertEquals(2, runs.size());
    deliver(event("dev.reschedule.due", "Site/" + ns + "/a")); // a timer asks no filter
    deliver(changed("update", "a").with("rescheduleattempt", "1")); // nor does a delivery that failed
    deliver(event("com.example.other", "Site/" + ns + "/a")); // nor another event
    assertEquals(5, runs.size());
  }

  /** A cause runs its key when a secondary resource of it changed, or when JOSDK does not watch its kind. */
  @Test
  void causesRunWhatChanged() throws Exception {
    start(c -> {});
    create("a", "watch");
    deliver(changed("add", "a"));
    deliver(cause("a", "v1/ConfigMap/" + ns + "/shared"));
    assertEquals(1, runs.size(), "nothing changed");
    client.resource(new ConfigMapBuilder().withNewMetadata().withName("shared").withNamespace(ns)
        .withLabels(Map.of("app", "shared", "site", "a")).endMetadata().withData(Map.of("content", "one")).build()).create();
    deliver(cause("a", "v1/ConfigMap/" + ns + "/shared"));
    assertEquals(2, runs.size());
    assertTrue(runs.get(1).endsWith("shared=one"), runs.get(1));
    deliver(cause("a", "apps/v1/Deployment/" + ns + "/x"));
    assertEquals(3, runs.size());
  }

  /** An event source that a run registers has what exists, for that run, and its changes are seen later. */
  @Test
  void sourcesMayBeRegisteredLate() throws Exception {
    start(c -> {});
    Site a = create("a", "dynamic");
    var owned = new ConfigMapBuilder().withNewMetadata().withName("late").withNamespace(ns)
        .withLabels(Map.of("app", "late")).endMetadata().build();
    owned.addOwnerReference(a);
    client.resource(owned).create();
    assertEquals(200, deliver(changed("add", "a")).status());
    assertEquals("a late=1", runs.get(runs.size() - 1));
    int before = runs.size();
    assertEquals(200, deliver(cause("a", "v1/ConfigMap/" + ns + "/late")).status());
    assertEquals(before, runs.size(), "nothing changed");
    client.resource(owned).delete();
    assertEquals(200, deliver(cause("a", "v1/ConfigMap/" + ns + "/late")).status());
    assertEquals("a late=0", runs.get(runs.size() - 1));
  }

  /** Changes of a kind run nothing when the event source that was asked about it has been ended. */
  @Test
  void anInactiveKindRunsNothing() throws Exception {
    start(c -> {});
    create("a", "leaving");
    deliver(changed("add", "a"));
    deliver(cause("a", "v1/Secret/" + ns + "/x"));
    assertEquals(1, runs.size(), "nothing changed");
    change("a");
    deliver(changed("update", "a"));
    assertEquals(2, runs.size());
    deliver(cause("a", "v1/Secret/" + ns + "/x"));
    assertEquals(2, runs.size(), "the reconciler is not called for it any more");
  }

  /** Deliveries that share a list each find the change of their own object. */
  @Test
  void sharedListsLoseNothing() throws Exception {
    start(c -> {});
    int n = 30;
    for (int i = 0; i < n; i++) {
      create("s" + i, "watch");
      deliver(changed("add", "s" + i));
    }
    var pool = java.util.concurrent.Executors.newFixedThreadPool(n);
    for (int round = 2; round < 8; round++) {
      List<CompletableFuture<Void>> all = new java.util.ArrayList<>();
      for (int i = 0; i < n; i++) {
        String name = "s" + i;
        ConfigMapBuilder shared = new ConfigMapBuilder().withNewMetadata().withName("shared-" + i).withNamespace(ns)
            .withLabels(Map.of("app", "shared", "site", name)).endMetadata().withData(Map.of("content", "c" + round));
        all.add(CompletableFuture.runAsync(
            () -> {
              client.resource(shared.build()).serverSideApply();
              Answer a = deliver(cause(name, "v1/ConfigMap/" + ns + "/shared"));
              assertEquals(200, a.status(), a.toString());
            }, pool));
      }
      all.forEach(CompletableFuture::join);
      for (int i = 0; i < n; i++) {
        String start = "s" + i + " ";
        String content = "shared=c" + round;
        assertTrue(runs.stream().anyMatch(r -> r.startsWith(start) && r.endsWith(content)),
            () -> start + content + " is not in " + runs.stream().filter(r -> r.startsWith(start)).toList());
      }
    }
    pool.shutdownNow();
  }

  /** All secondaries are there, also when they are more than one page of the list. */
  @Test
  void listsAreReadByPages() throws Exception {
    start(c -> {});
    for (int i = 0; i < 5; i++) {
      client.resource(new ConfigMapBuilder().withNewMetadata().withName("shared-" + i).withNamespace(ns)
          .withLabels(Map.of("app", "shared", "site", "s" + i)).endMetadata().withData(Map.of("content", "c" + i)).build())
          .create();
    }
    for (int i = 0; i < 5; i++) {
      create("s" + i, "watch");
      deliver(changed("add", "s" + i));
      assertTrue(runs.get(i).endsWith("shared=c" + i), runs.toString());
    }
  }

  /** The retries of an object go on in a new process, with the waits of JOSDK. */
  @Test
  void retriesOutliveTheProcess() throws Exception {
    start(c -> {});
    create("a", "exhaust");
    Answer a = deliver(changed("add", "a"));
    for (String wait : List.of("300ms", "300ms", "450ms")) {
      assertWait(wait, a);
      assertEquals(a.headers().get("Reschedule-After"), a.headers().get("Ce-Rescheduleafter"));
      restart(c -> {});
      Headers due = event("dev.reschedule.due", "Site/" + ns + "/a");
      a = deliver(due, a.text()).join();
    }
    assertWait("36000000ms", a); // JOSDK's maximal interval
    assertTrue(runs.get(3).contains("retry=3(last)"), runs.toString());
  }

  /** A write that meets a conflict is repeated on the newer object at once: a watch would bring it. */
  @Test
  void aConflictReadsTheNewerObject() throws Exception {
    start(c -> {});
    create("a", "conflict");
    assertWait("36000000ms", deliver(changed("add", "a")));
    assertEquals(1, client.resources(Site.class).inNamespace(ns).withName("a").get().getStatus().count);
    assertEquals(2, runs.size(), runs.toString());
    assertTrue(runs.get(1).startsWith("a gen=2 retry=-"), runs.toString());
  }

  /** A change that comes while a run fails has it run again at once, and the attempt does not count. */
  @Test
  void aChangeSupersedesAFailure() throws Exception {
    start(c -> {});
    create("a", "superseded");
    assertWait("36000000ms", deliver(changed("add", "a")));
    assertEquals(2, runs.size(), runs.toString());
    assertTrue(runs.get(1).startsWith("a gen=2 retry=0"), runs.toString());
  }

  /** An own write does not hide what another hand changed before it. */
  @Test
  void anOwnWriteHidesNoChange() throws Exception {
    start(c -> {});
    create("a", "overlapped");
    deliver(changed("add", "a"));
    deliver(changed("update", "a"));
    assertEquals(2, runs.size(), runs.toString());
    assertTrue(runs.get(1).startsWith("a gen=2 retry=-"), runs.toString());
  }

  /** A rate limit delays, and runs nothing. */
  @Test
  void aRateLimitIsAWait() throws Exception {
    start(c -> c.withRateLimiter(new LinearRateLimiter(Duration.ofMinutes(5), 1)));
    create("a", "watch");
    deliver(changed("add", "a"));
    int before = runs.size();
    for (int i = 0; i < 5; i++) {
      Answer a = deliver(event("dev.reschedule.due", "Site/" + ns + "/a"));
      // JOSDK 5.3 asks for the time since the period began, but at least 50 ms.
      long wait = Long.parseLong(a.headers().get("Reschedule-After").replace("ms", ""));
      assertTrue(wait >= 49 && wait <= 300_000, "a wait of " + wait);
    }
    assertEquals(before, runs.size());
  }

  /** An object that is gone, or in a namespace that is not watched, ends its key. */
  @Test
  void whatIsGoneEndsItsKey() throws Exception {
    start(c -> {});
    for (Headers h :
        List.of(changed("delete", "absent"), event("dev.reschedule.due", "Site/" + ns + "/absent"),
            event("dev.reschedule.due", "Site/elsewhere/a"))) {
      Answer a = deliver(h);
      assertEquals(204, a.status());
      assertEquals("never", a.headers().get("Reschedule-After"));
    }
    assertEquals(List.of(), runs);
  }

  /** A kind that the API server does not serve proves nothing about its objects. */
  @Test
  void aMissingKindIsAFailedDelivery() throws Exception {
    client = Kube.get().client();
    ns = Kube.get().namespace("deliver-missing");
    operator =
        new RescheduleOperator(o -> o.withKubernetesClient(client).withCloseClientOnStop(false)).withoutServer();
    operator.<Absent>register(new AbsentReconciler(), c -> c.settingNamespace(ns));
    operator.start();
    assertEquals(503, deliver(event("dev.reschedule.due", "Absent/" + ns + "/a")).status());
  }

  @Group("sample.reschedule.dev")
  @Version("v1")
  static class Absent extends CustomResource<Void, Void> implements Namespaced {}

  @ControllerConfiguration
  static class AbsentReconciler implements Reconciler<Absent> {
    @Override
    public UpdateControl<Absent> reconcile(Absent resource, Context<Absent> context) {
      return UpdateControl.noUpdate();
    }
  }

  /** An object that the selector of the controller does not select is none of its objects. */
  @Test
  void whatIsNotSelectedIsGone() throws Exception {
    start(c -> c.withLabelSelector("team=a"));
    create("a", "watch");
    for (int i = 1; i < 3; i++) {
      assertEquals("never", deliver(changed("update", "a")).headers().get("Reschedule-After"));
      label("a");
      assertWait("36000000ms", deliver(changed("update", "a")));
      assertEquals(i, runs.size());
      label("b");
    }
  }

  private void label(String team) {
    client.resources(Site.class).inNamespace(ns).withName("a").edit(s -> {
      s.getMetadata().setLabels(Map.of("team", team));
      return s;
    });
  }

  /** Several namespaces are one controller. */
  @Test
  void namespacesAreSeveral() throws Exception {
    String other = Kube.get().namespace("deliver-other");
    start(c -> c.settingNamespaces(ns, other));
    create("a", "watch");
    String first = ns;
    ns = other;
    create("b", "watch");
    deliver(changed("add", "b"));
    ns = first;
    deliver(changed("add", "a"));
    assertEquals(2, runs.size());
  }

  /** An Error of the JVM is a 503, not a hang, and the next delivery runs again. */
  @Test
  void anErrorIsAFailedDelivery() throws Exception {
    start(c -> {});
    create("a", "error");
    Answer a = deliver(changed("add", "a"), "").get(60, TimeUnit.SECONDS);
    assertEquals(503, a.status());
    a = deliver(changed("add", "a").with("rescheduleattempt", "1"), "").get(60, TimeUnit.SECONDS);
    assertEquals(200, a.status());
    assertEquals(2, runs.size());
    assertTrue(runs.get(1).contains("retry=-"), runs.toString());
  }

  /** A reconciler that hangs costs its delivery, not its neighbours. */
  @Test
  void aHangingRunIsBounded() throws Exception {
    start(c -> {});
    operator.withTimeout(Duration.ofSeconds(2));
    create("a", "hang");
    create("b", "watch");
    assertEquals(503, deliver(changed("add", "a"), "").get(60, TimeUnit.SECONDS).status());
    assertEquals(200, deliver(changed("add", "b"), "").get(60, TimeUnit.SECONDS).status());
    assertEquals(503, deliver(changed("add", "a"), "").get(60, TimeUnit.SECONDS).status());
    assertEquals(1, runs.stream().filter(r -> r.startsWith("a ")).count(), "a second run began: " + runs);
  }

  /** A process that must stop answers with 503 what it cannot finish. */
  @Test
  void stoppingLosesNothing() throws Exception {
    start(c -> {});
    create("a", "hang");
    CompletableFuture<Answer> hanging = deliver(changed("add", "a"), "");
    long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);
    while (runs.isEmpty() && System.nanoTime() < end) {
      TimeUnit.MILLISECONDS.sleep(20);
    }
    RescheduleOperator stopped = operator;
    stopped.stop();
    assertEquals(503, hanging.get(10, TimeUnit.SECONDS).status());
    assertEquals(503, deliver(changed("add", "a")).status());
  }

  /** The API server that cannot be reached is a failed delivery. */
  @Test
  void aFailedReadIsAFailedDelivery() throws Exception {
    start(c -> {});
    client.close();
    assertEquals(503, deliver(changed("add", "a"), "").get(60, TimeUnit.SECONDS).status());
    assertNull(deliver(event("t", "Other/a/b")).headers().get("Reschedule-After"));
  }
}
