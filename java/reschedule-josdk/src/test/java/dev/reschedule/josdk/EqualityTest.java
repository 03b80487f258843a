package dev.reschedule.josdk;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.InetSocketAddress;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.BooleanSupplier;

import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

import com.sun.net.httpserver.HttpServer;

import io.fabric8.kubernetes.api.model.ConfigMap;
import io.fabric8.kubernetes.api.model.ConfigMapBuilder;
import io.fabric8.kubernetes.api.model.HasMetadata;
import io.fabric8.kubernetes.api.model.ObjectMetaBuilder;
import io.fabric8.kubernetes.client.CustomResource;
import io.fabric8.kubernetes.client.KubernetesClient;
import io.javaoperatorsdk.operator.Operator;
import io.javaoperatorsdk.operator.api.config.ConfigurationServiceOverrider;
import io.javaoperatorsdk.operator.processing.retry.GenericRetry;
import io.javaoperatorsdk.operator.processing.retry.RetryExecution;

import dev.reschedule.client.Answer;
import dev.reschedule.testing.Operators;

/**
 * The same operator resident, behind a source with spec.watch in the real adapter, and behind it with a new operator and
 * with a new process for every delivery: the runs of each object are the same, in the same order.
 */
@Timeout(300)
class EqualityTest {

  /** The runs that each object must have, whatever operator there is. */
  private static final Map<String, List<String>> RUNS =
      Map.ofEntries(
          // the finalizer is added, a secondary created, whose event is a run; the spec changes
          Map.entry("plain", List.of("gen=1 retry=- owned=none", "gen=1 retry=- owned=one", "gen=2 retry=- owned=one",
              "gen=2 retry=- owned=two")),
          Map.entry("poll", Collections.nCopies(4, "gen=1 retry=- owned=none")),
          Map.entry("retry", List.of("gen=1 retry=- owned=none", "gen=1 retry=1 owned=none", "gen=1 retry=2 owned=none")),
          Map.entry("exhaust", List.of("gen=1 retry=- owned=none", "gen=1 retry=1 owned=none", "gen=1 retry=2 owned=none",
              "gen=1 retry=3(last) owned=none")),
          Map.entry("errstatus", Collections.nCopies(3, "gen=1 retry=- owned=none")),
          Map.entry("instant", Collections.nCopies(3, "gen=1 retry=- owned=none")),
          // a secondary is changed by another hand, and the run repairs it, whose event is a run
          Map.entry("drift", List.of("gen=1 retry=- owned=none", "gen=1 retry=- owned=one", "gen=1 retry=- owned=bad",
              "gen=1 retry=- owned=one")),
          Map.entry("deleted", List.of("gen=1 retry=- owned=none", "gen=1 retry=- owned=one", "cleanup owned=one",
              "cleanup owned=none")),
          Map.entry("gone", List.of("gen=1 retry=- owned=none", "cleanup owned=none")),
          // a label of the object changes, its generation does not
          Map.entry("label", List.of("gen=1 retry=- owned=none")),
          Map.entry("mapped", List.of("gen=1 retry=- owned=none", "gen=1 retry=- owned=none shared=one",
              "gen=1 retry=- owned=none shared=two", "gen=1 retry=- owned=none")),
          // the workflow creates, repairs and updates the dependent before reconcile is called
          Map.entry("page", List.of("gen=1 content=one", "gen=1 content=one", "gen=2 content=two")),
          Map.entry("tick", Collections.nCopies(3, "gen=1 retry=-")),
          Map.entry("exhausttick", List.of("gen=1 retry=-", "gen=1 retry=1", "gen=1 retry=2(last)", "gen=1 retry=2(last)")),
          Map.entry("two/300", Collections.nCopies(5, "gen=1 retry=-")),
          Map.entry("two/900", Collections.nCopies(2, "gen=1 retry=-")));

  private static final String NONE = "gen=1 retry=- owned=none";

  /** JOSDK 5.4 and later: other rules for retries and for mappers. */
  private static final boolean NEWER =
      Arrays.stream(RetryExecution.class.getMethods()).anyMatch(m -> m.getName().equals("remainingDurationUntilNextRetry"));

  /** Objects that are run for ever: their beginning is compared. */
  private static final List<String> ENDLESS = List.of("tick", "exhausttick", "two/300", "two/900", "noisy");

  /** The runs that each object has with this version of JOSDK and this variant of the operator. */
  private static Map<String, List<String>> runs(String variant) {
    Map<String, List<String>> runs = new TreeMap<>(RUNS);
    // A change while a retry waits fails too. Since 5.4 it is no attempt, and the retry keeps its time. A new process
    // does not know of the retry.
    String again = variant.equals("cold") ? "gen=2 retry=-" : "gen=2 retry=1";
    String third = variant.equals("cold") || NEWER ? "gen=2 retry=1" : "gen=2 retry=2(last)";
    runs.put("noisy", List.of("gen=1 retry=-", again, third));
    // A secondary comes to refer to another primary. The source always sends the one that it has left too, and since 5.4
    // JOSDK runs it; a new process has nothing to compare it with, and always runs it.
    runs.put("joined", List.of(NONE, NONE + " shared=one"));
    boolean leaves = NEWER || variant.equals("cold");
    runs.put("left", leaves ? List.of(NONE, NONE + " shared=one", NONE) : List.of(NONE, NONE + " shared=one"));
    if (NEWER) { // the version in an owner's reference counts no more
      runs.put("versioned", List.of(NONE, "gen=1 retry=- owned=one"));
    }
    if (variant.equals("processes")) {
      runs.keySet().retainAll(FEW);
    }
    return runs;
  }

  @TempDir static Path dir;
  private static final Map<String, Variant> variants = new ConcurrentHashMap<>();

  /** One of the three ways to run the operator, with the runs of each object. */
  private abstract static class Variant implements AutoCloseable {
    final String name;
    final String namespace;
    final KubernetesClient client;
    final Map<String, List<String>> runs = new ConcurrentHashMap<>();
    final List<AutoCloseable> open = new CopyOnWriteArrayList<>();

    Variant(String name) throws Exception {
      this.name = name;
      this.namespace = Kube.get().namespace("equal-" + name);
      this.client = Kube.get().client();
    }

    abstract void start() throws Exception;

    void record(String object, String run) {
      runs.computeIfAbsent(object, o -> new CopyOnWriteArrayList<>()).add(run);
    }

    void configure(ConfigurationServiceOverrider o) {
      o.withKubernetesClient(client).withCloseClientOnStop(false);
    }

    <O extends Operator> O register(O operator) {
      String selector = "variant=" + name;
      operator.<Site>register(new SiteReconciler(this::record), c -> c.settingNamespace(namespace));
      operator.<Page>register(new PageReconciler(this::record), c -> c.settingNamespace(namespace));
      for (int every : new int[] {300, 900}) {
        operator.<Tick>register(
            new TickReconciler((o, r) -> { if (every == 300 || o.startsWith("two")) { record(o, r); } },
                Duration.ofMillis(every)),
            c -> c.withName("ticks-" + every).withLabelSelector(selector + ",!slow"));
      }
      operator.<Tick>register(
          new TickReconciler(this::record, Duration.ZERO),
          c -> c.withName("ticks-slow").withLabelSelector(selector + ",slow")
              .withRetry(new GenericRetry().setInitialInterval(NEWER ? 15_000 : 5_000).setIntervalMultiplier(1).setMaxAttempts(2)));
      return operator;
    }

    /** What counts of primary objects: docs/josdk.md recommends Spec. */
    String changes() {
      return "Spec";
    }

    /** Makes a source whose sink is at the port. */
    void behind(int port) throws Exception {
      Kube.get()
          .apply(
              """
              apiVersion: v1
              kind: ServiceAccount
              metadata: {name: watcher, namespace: %1$s}
              ---
              apiVersion: rbac.authorization.k8s.io/v1
              kind: ClusterRole
              metadata: {name: %1$s}
              rules:
                - {apiGroups: [sample.reschedule.dev], resources: ["*"], verbs: [get, list, watch]}
                - {apiGroups: [""], resources: [configmaps], verbs: [get, list, watch]}
              ---
              apiVersion: rbac.authorization.k8s.io/v1
              kind: ClusterRoleBinding
              metadata: {name: %1$s}
              subjects: [{kind: ServiceAccount, namespace: %1$s, name: watcher}]
              roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: %1$s}
              ---
              apiVersion: sources.reschedule.dev/v1alpha1
              kind: RescheduleSource
              metadata: {name: test, namespace: %1$s}
              spec:
                sink: {uri: "http://127.0.0.1:%2$d/"}
                delivery: {backoffDelay: PT0.2S}
                watch:
                  serviceAccountName: watcher
                  resources:
                    - {apiVersion: sample.reschedule.dev/v1, kind: Site, changes: %3$s}
                    - {apiVersion: sample.reschedule.dev/v1, kind: Page, changes: %3$s}
                    - {apiVersion: sample.reschedule.dev/v1, kind: Tick, changes: %3$s, selector: {matchLabels: {variant: %4$s}}}
                    - {apiVersion: v1, kind: ConfigMap, owner: {apiVersion: sample.reschedule.dev/v1, kind: Site}}
                    - {apiVersion: v1, kind: ConfigMap, owner: {apiVersion: sample.reschedule.dev/v1, kind: Page}}
                    - apiVersion: v1
                      kind: ConfigMap
                      selector: {matchLabels: {app: shared}}
                      key: "'Site/' + object.metadata.namespace + '/' + object.metadata.labels['site']"
              """
                  .formatted(namespace, port, changes(), name));
      Kube.get().sourceReady(namespace, "test");
    }

    @Override
    public void close() throws Exception {
      List<AutoCloseable> all = new ArrayList<>(open);
      Collections.reverse(all);
      for (AutoCloseable c : all) {
        c.close();
      }
    }

    List<String> of(String object) {
      return runs.getOrDefault(object, List.of());
    }

    /** What a failure quotes. */
    String state() {
      return new TreeMap<>(runs).toString();
    }
  }

  private static final class Resident extends Variant {
    Resident() throws Exception {
      super("resident");
    }

    @Override
    void start() {
      Operator o = register(new Operator(this::configure));
      o.start();
      open.add(o::stop);
    }
  }

  private static final class Warm extends Variant {
    Warm() throws Exception {
      super("warm");
    }

    /** It gets more, and JOSDK's own filters drop it. */
    @Override
    String changes() {
      return "Metadata";
    }

    @Override
    void start() throws Exception {
      RescheduleOperator o = register(new RescheduleOperator(this::configure)).withPort(0);
      o.start();
      open.add(o::stop);
      behind(o.port());
    }
  }

  private static final class Cold extends Variant {
    final AtomicInteger operators = new AtomicInteger();

    Cold() throws Exception {
      super("cold");
    }

    @Override
    void start() throws Exception {
      HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", 0), 0);
      ExecutorService pool = Executors.newCachedThreadPool();
      server.setExecutor(pool);
      server.createContext(
          "/",
          x -> {
            operators.incrementAndGet();
            RescheduleOperator o = register(new RescheduleOperator(this::configure)).withoutServer();
            o.start();
            Answer a =
                o.deliver(x.getRequestHeaders(), x.getRequestBody().readAllBytes()).toCompletableFuture().join();
            o.stop();
            a.headers().forEach((k, v) -> x.getResponseHeaders().set(k, v));
            byte[] body = a.body();
            x.sendResponseHeaders(a.status(), body.length == 0 ? -1 : body.length);
            x.getResponseBody().write(body);
            x.close();
          });
      server.start();
      open.add(
          () -> {
            server.stop(0);
            pool.shutdownNow();
          });
      behind(server.getAddress().getPort());
    }
  }

  /** A new JVM for every delivery. There are few objects: each run costs a start. */
  private static final class Processes extends Variant {
    Operators operators;
    Path file;

    Processes() throws Exception {
      super("processes");
    }

    @Override
    void start() throws Exception {
      Path logs = Files.createDirectory(dir.resolve(name));
      file = logs.resolve("record");
      Map<String, String> environment = new HashMap<>(Kube.get().environment());
      environment.put("RECORD", file.toString());
      environment.put("WATCH_NAMESPACE", namespace);
      operators =
          new Operators(
              logs, List.of("-cp", System.getProperty("java.class.path"), "dev.reschedule.josdk.Main"), environment);
      open.add(operators);
      behind(operators.port());
    }

    @Override
    List<String> of(String object) {
      try {
        return Files.exists(file)
            ? Files.readAllLines(file).stream()
                .filter(l -> l.startsWith(object + " "))
                .map(l -> l.substring(object.length() + 1))
                .toList()
            : List.of();
      } catch (IOException e) {
        throw new UncheckedIOException(e);
      }
    }

    @Override
    String state() {
      try {
        return Files.readAllLines(file) + "\n" + Files.readString(dir.resolve(name).resolve("operator-1.log"));
      } catch (IOException e) {
        return e.toString();
      }
    }
  }

  @BeforeAll
  @Timeout(300)
  static void run() throws Exception {
    for (Variant v : List.of(new Resident(), new Warm(), new Cold(), new Processes())) {
      variants.put(v.name, v);
    }
    ExecutorService pool = Executors.newFixedThreadPool(3);
    List<Future<?>> all = new ArrayList<>();
    for (String name : List.of("resident", "warm", "cold")) {
      all.add(
          pool.submit(
              () -> {
                try (Variant v = variants.get(name)) {
                  v.start();
                  scenarios(v);
                }
                return null;
              }));
    }
    for (Future<?> f : all) {
      f.get();
    }
    pool.shutdownNow();
    try (Variant v = variants.get("processes")) { // alone, since each of its deliveries takes a processor for a second
      v.start();
      fewScenarios(v);
    }
  }

  /** Finalizer and an own event, retries, error status, deletion with a second cleanup, a mapper. */
  private static final List<String> FEW = List.of("plain", "retry", "errstatus", "deleted", "mapped");

  private static void fewScenarios(Variant v) throws Exception {
    KubernetesClient c = v.client;
    for (String[] site : SITES) {
      if (FEW.contains(site[0])) {
        c.resource(object(new Site(), v, site[0], site[1])).create();
        await(v, site[0], 1);
      }
    }
    await(v, "plain", 2);
    c.resources(Site.class).inNamespace(v.namespace).withName("plain").edit(s -> content(s, "two"));
    await(v, "deleted", 2);
    c.resources(Site.class).inNamespace(v.namespace).withName("deleted").delete();
    await(v, "mapped", 1);
    mapped(v);
    for (String object : FEW) {
      await(v, object, RUNS.get(object).size());
    }
    until(v, "the end of deleted",
        () -> c.resources(Site.class).inNamespace(v.namespace).withName("deleted").get() == null);
  }

  /** Another object, which a mapper finds, is made, changed and deleted. */
  private static void mapped(Variant v) throws Exception {
    KubernetesClient c = v.client;
    ConfigMap shared = shared(v, "shared", "shared", "mapped");
    c.resource(shared).create();
    await(v, "mapped", 2);
    edit(v, "shared", "two");
    await(v, "mapped", 3);
    c.resource(shared).delete();
  }

  /** Another object comes to refer to another site. */
  private static void moved(Variant v) throws Exception {
    v.client.resource(shared(v, "moving", "shared", "left")).create();
    await(v, "left", 2);
    v.client.configMaps().inNamespace(v.namespace).withName("moving").edit(m -> {
      m.getMetadata().getLabels().put("site", "joined");
      return m;
    });
    await(v, "joined", 2);
  }

  private static ConfigMap shared(Variant v, String name, String app, String site) {
    return new ConfigMapBuilder().withNewMetadata().withName(name).withNamespace(v.namespace)
        .withLabels(Map.of("app", app, "site", site)).endMetadata().withData(Map.of("content", "one")).build();
  }

  @AfterAll
  static void print() {
    if (variants.get("processes") instanceof Processes p) {
      System.out.println("processes: " + p.operators.started());
    }
    if (variants.get("cold") instanceof Cold c) {
      System.out.println(
          "runs: " + c.runs.values().stream().mapToInt(List::size).sum() + " by " + c.operators + " operators");
    }
  }

  /**
   * Name and mode of each site, in the order of their creation. The next site is created after the first run of the
   * previous site, and sites that write their status come last, one after the other: when another object of a kind changes while JOSDK adds a
   * finalizer, JOSDK 5.3.2 does not recognise its own change (TemporaryResourceCache.putResource), and the object is run
   * twice. That is so in a resident operator too.
   */
  private static final String[][] SITES = {
    {"label", "watch"}, {"mapped", "watch"}, {"left", "watch"}, {"joined", "watch"}, {"versioned", "watch"}, {"gone", "long"}, {"instant", "instant"}, {"plain", "plain"},
    {"drift", "plain"}, {"deleted", "plain"}, {"retry", "retry"}, {"exhaust", "exhaust"}, {"errstatus", "errstatus"},
    {"poll", "poll"}
  };

  private static void scenarios(Variant v) throws Exception {
    KubernetesClient c = v.client;
    Map<String, List<String>> runs = runs(v.name);
    tick(v, "noisy", "exhaust", Map.of("variant", v.name, "slow", ""));
    await(v, "noisy", 1);
    for (String[] site : SITES) {
      c.resource(object(new Site(), v, site[0], site[1])).create();
      await(v, site[0], site[0].equals("errstatus") ? RUNS.get("errstatus").size() : 1);
      if (site[0].equals("mapped")) { // its first run, which was noted when it began, has failed long since
        c.resources(Tick.class).withName("noisy-" + v.name).edit(t -> content(t, "two"));
      }
    }
    c.resource(object(new Page(), v, "page", "")).create();
    for (String tick : List.of("tick", "exhausttick", "two")) {
      tick(v, tick, tick.replace("tick", ""), Map.of("variant", v.name));
    }
    await(v, "plain", 2);
    c.resources(Site.class).inNamespace(v.namespace).withName("plain").edit(s -> content(s, "two"));
    await(v, "drift", 2);
    edit(v, "site-drift", "bad");
    await(v, "deleted", 2);
    c.resources(Site.class).inNamespace(v.namespace).withName("deleted").delete();
    await(v, "gone", 1);
    c.resources(Site.class).inNamespace(v.namespace).withName("gone").delete();
    await(v, "label", 1);
    c.resources(Site.class).inNamespace(v.namespace).withName("label").edit(s -> {
      s.getMetadata().setLabels(Map.of("touched", "yes"));
      return s;
    });
    await(v, "mapped", 1);
    mapped(v);
    moved(v);
    ConfigMap versioned = shared(v, "site-versioned", "site", "versioned");
    versioned.addOwnerReference(c.resources(Site.class).inNamespace(v.namespace).withName("versioned").get());
    versioned.getMetadata().getOwnerReferences().get(0).setApiVersion("sample.reschedule.dev/v2");
    c.resource(versioned).create();
    await(v, "page", 1);
    int before = v.of("page").size();
    edit(v, "page-page", "bad");
    await(v, "page", before + 1);
    c.resources(Page.class).inNamespace(v.namespace).withName("page").edit(s -> content(s, "two"));
    for (String object : runs.keySet()) {
      await(v, object, runs.get(object).size());
    }
    until(v, "the last run of page", () -> v.of("page").contains("gen=2 content=two"));
    for (String deleted : List.of("deleted", "gone")) {
      until(v, "the end of " + deleted,
          () -> c.resources(Site.class).inNamespace(v.namespace).withName(deleted).get() == null);
    }
    TimeUnit.MILLISECONDS.sleep(1500); // for a run too many
  }

  private static void tick(Variant v, String name, String mode, Map<String, String> labels) {
    Tick t = object(new Tick(), v, name + "-" + v.name, mode);
    t.getMetadata().setNamespace(null);
    t.getMetadata().setLabels(labels);
    v.client.resource(t).create();
  }

  private static <T extends CustomResource<Site.Spec, Site.Status>> T object(T o, Variant v, String name, String mode) {
    o.setMetadata(new ObjectMetaBuilder().withName(name).withNamespace(v.namespace).build());
    o.setSpec(new Site.Spec());
    o.getSpec().mode = mode;
    o.getSpec().content = "one";
    return o;
  }

  private static <T extends CustomResource<Site.Spec, Site.Status>> T content(T o, String content) {
    o.getSpec().content = content;
    return o;
  }

  private static void edit(Variant v, String configMap, String content) {
    v.client.configMaps().inNamespace(v.namespace).withName(configMap).edit(m -> {
      m.getData().put("content", content);
      return m;
    });
  }

  private static void await(Variant v, String object, int runs) throws InterruptedException {
    until(v, runs + " runs of " + object, () -> v.of(object).size() >= runs);
  }

  private static void until(Variant v, String what, BooleanSupplier there) throws InterruptedException {
    long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(120);
    while (!there.getAsBoolean()) {
      if (System.nanoTime() > end) {
        throw new AssertionError(v.name + ": waited in vain for " + what + ", has " + v.state());
      }
      TimeUnit.MILLISECONDS.sleep(20);
    }
  }

  private static List<String> collapsed(List<String> runs) {
    List<String> distinct = new ArrayList<>();
    for (String run : runs) {
      if (distinct.isEmpty() || !distinct.get(distinct.size() - 1).equals(run)) {
        distinct.add(run);
      }
    }
    return distinct;
  }

  /** Each object has the runs that JOSDK gives it, in their order. */
  @ParameterizedTest
  @ValueSource(strings = {"resident", "warm", "cold", "processes"})
  void runsAreTheSame(String name) throws Exception {
    Variant v = variants.get(name);
    for (Map.Entry<String, List<String>> expected : runs(name).entrySet()) {
      List<String> got = v.of(expected.getKey());
      if (name.equals("cold") && expected.getKey().equals("page")) {
        // A new process does not know which change of a dependent was its own: a run too many, never one too few.
        assertEquals(collapsed(expected.getValue()), collapsed(got), "cold page");
        continue;
      }
      int n = ENDLESS.contains(expected.getKey()) ? Math.min(got.size(), expected.getValue().size()) : got.size();
      assertEquals(expected.getValue(), got.subList(0, n), name + " " + expected.getKey());
    }
    for (String deleted : name.equals("processes") ? List.of("deleted") : List.of("deleted", "gone")) {
      HasMetadata left = v.client.resources(Site.class).inNamespace(v.namespace).withName(deleted).get();
      assertNull(left, name + " " + deleted);
    }
  }
}
