package dev.reschedule.josdk;

import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.OptionalLong;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import java.util.regex.Pattern;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import io.fabric8.kubernetes.api.model.HasMetadata;
import io.javaoperatorsdk.operator.DeliveredControllers;
import io.javaoperatorsdk.operator.Operator;
import io.javaoperatorsdk.operator.OperatorException;
import io.javaoperatorsdk.operator.RegisteredController;
import io.javaoperatorsdk.operator.api.config.ConfigurationService;
import io.javaoperatorsdk.operator.api.config.ConfigurationServiceOverrider;
import io.javaoperatorsdk.operator.api.config.ControllerConfiguration;
import io.javaoperatorsdk.operator.api.reconciler.Reconciler;
import io.javaoperatorsdk.operator.processing.event.ResourceID;

import dev.reschedule.client.Answer;
import dev.reschedule.client.CloudEvent;
import dev.reschedule.client.Delivery;
import dev.reschedule.client.Policy;
import dev.reschedule.client.Request;
import dev.reschedule.client.Schedules;

/**
 * An operator that deliveries of a RescheduleSource wake, and that leaves its timers to the source. Use it in the place of
 * {@link Operator}: reconcilers, their configuration and the call of start stay as they are.
 *
 * <p>JOSDK itself runs in it, with its filters, retries, rate limits, dependents and workflows. There is no watch and no
 * timer in the process: each delivery reads its object and lists the secondary resources, and its answer says when the
 * object is due again. A delivery is answered when JOSDK has nothing more to do for its object at once; until then the
 * source has it. So a process that is killed loses nothing.
 */
public class RescheduleOperator extends Operator {

  private static final Logger log = LoggerFactory.getLogger(RescheduleOperator.class);

  /** How many keys may wait for a call of the schedule API, and how many calls there are at a time. */
  private static final int MOST_ASKED = 1_000;

  private static final int ASKING = 4;

  /** The names that a URL takes as they are: Fabric8 does not escape them, and another path is another object. */
  private static final Pattern NAME = Pattern.compile("(?!\\.{1,2}$)[-._~:@!$&'()*+,;=A-Za-z0-9]+");

  private final Map<String, RescheduledController<?>> controllers = new LinkedHashMap<>();
  private final Set<CompletableFuture<Answer>> inFlight = ConcurrentHashMap.newKeySet();
  private final Set<String> asked = ConcurrentHashMap.newKeySet();
  private final ExecutorService asking = asking();
  private int port = port(System.getenv("PORT"));
  private Duration timeout = Duration.ofMinutes(10);
  private Duration grace;
  private boolean retryBySource;
  private TokenVerifier verifier;
  private Schedules schedules;
  private DeliveryServer server;
  private volatile boolean running;
  private volatile boolean stopping;

  /** Makes an operator with JOSDK's default configuration. */
  public RescheduleOperator() {
    this(o -> {});
  }

  /** Makes an operator with a changed configuration. Leader election is off: the source delivers a key to one process. */
  public RescheduleOperator(Consumer<ConfigurationServiceOverrider> overrider) {
    super(overrider.andThen(o -> o.withLeaderElectionConfiguration(null)));
  }

  /** Makes an operator with a configuration of its own. Leader election is off. */
  public RescheduleOperator(ConfigurationService configurationService) {
    super(withoutElection(configurationService));
  }

  static int port(String variable) {
    try {
      return variable == null || variable.isEmpty() ? 8080 : Integer.parseInt(variable);
    } catch (NumberFormatException e) {
      throw new IllegalArgumentException("PORT is not a number: " + variable, e);
    }
  }

  private static ConfigurationService withoutElection(ConfigurationService c) {
    return c.getLeaderElectionConfiguration().isEmpty()
        ? c
        : ConfigurationService.newOverriddenConfigurationService(
            c, o -> o.withLeaderElectionConfiguration(null));
  }

  /**
   * Takes only deliveries with a token for the audience, which is the sink.audience of the source. Without subjects it
   * must be a token of a RescheduleSource in the operator's own namespace; else of one of these accounts, such as
   * {@code system:serviceaccount:ops:name}. Without a call of this method every sender is taken.
   */
  public RescheduleOperator withAudience(String audience, String... subjects) {
    verifier = TokenVerifier.of(getKubernetesClient(), audience, List.of(subjects));
    return this;
  }

  /**
   * Asks the source for a run when something happens that only this process sees, such as an event of a
   * PollingEventSource. Without a call of this method such an event waits for the next delivery of its object.
   */
  public RescheduleOperator withSchedules(Schedules client) {
    schedules = client;
    return this;
  }

  /** Listens on this port instead of the port in the environment variable PORT (default 8080); 0 is any free port. */
  public RescheduleOperator withPort(int number) {
    port = number;
    return this;
  }

  /** Opens no port: a server of another framework calls {@link #deliver}. */
  public RescheduleOperator withoutServer() {
    port = -1;
    return this;
  }

  /** Sets how long a delivery may take, as the delivery.timeout of the source; 10 minutes by default. */
  public RescheduleOperator withTimeout(Duration d) {
    if (d.isNegative() || d.isZero()) {
      throw new IllegalArgumentException("withTimeout: no delivery is done in " + d);
    }
    timeout = d;
    return this;
  }

  /**
   * Lets the source count the retries: a reconcile that fails is a failed delivery, whose answer names the delay of the
   * controller's Retry. So the failure shows in the conditions, the metrics and the API of the source, RetryInfo is the
   * number of its attempts, and an object whose retries are exhausted is a dead letter. A controller must then be the only one for its kind.
   */
  public RescheduleOperator withRetryBySource() {
    retryBySource = true;
    return this;
  }

  @Override
  public <P extends HasMetadata> RegisteredController<P> register(
      Reconciler<P> reconciler, ControllerConfiguration<P> configuration) {
    if (running) {
      throw new OperatorException("Operator already started. Register all the controllers before.");
    }
    if (configuration == null) {
      throw new OperatorException("No configuration of " + reconciler.getClass().getName());
    }
    String kind = HasMetadata.getKind(configuration.getResourceClass());
    var controller =
        new RescheduledController<>(reconciler, configuration, getKubernetesClient(), id -> ask(kind, id), () -> retryBySource);
    DeliveredControllers.add(this, controller);
    controllers.put(configuration.getName(), controller);
    return controller;
  }

  /** Starts the controllers, and serves deliveries. */
  @Override
  public synchronized void start() {
    if (running) {
      return;
    }
    if (retryBySource && controllers.values().stream().map(RescheduledController::kind).distinct().count() < controllers.size()) {
      throw new OperatorException("withRetryBySource: a kind has more than one controller, and one counter of attempts");
    }
    stopping = false;
    super.start(); // event sources and processors, but no lists and no watches
    running = true;
    if (port >= 0) {
      server = DeliveryServer.start(port, verifier, this::deliver);
      log.info("Deliveries are served on port {}", server.port());
    }
  }

  /** Returns the port that deliveries are served on. */
  public int port() {
    return server.port();
  }

  /** As in JOSDK; the timeout is how long runs may go on when the process must stop. */
  @Override
  public void installShutdownHook(Duration gracefulShutdownTimeout) {
    grace = gracefulShutdownTimeout;
    super.installShutdownHook(gracefulShutdownTimeout);
  }

  /**
   * Lets runs end and answers them, for as long as the reconciliationTerminationTimeout or the timeout of {@link
   * #installShutdownHook}. Deliveries that are left, and new ones, get a 503: their source sends them again.
   */
  @Override
  public synchronized void stop() {
    stopping = true;
    if (running) {
      Duration wait =
          grace != null ? grace : getConfigurationService().reconciliationTerminationTimeout();
      CompletableFuture<?>[] left = inFlight.toArray(new CompletableFuture<?>[0]);
      CompletableFuture.allOf(left)
          .completeOnTimeout(null, wait.toMillis(), TimeUnit.MILLISECONDS)
          .exceptionally(e -> null)
          .join();
    }
    super.stop(); // what is left fails, and is answered
    running = false;
    if (server != null) {
      server.stop();
      server = null;
    }
  }

  /**
   * Processes one delivery. This is the operator apart from any server: a server of another framework may call it, after
   * it has checked who sends. It blocks while it reads from the API server. The result never fails. What follows it must
   * not block: it may be called in a thread that other runs wait for.
   */
  public CompletionStage<Answer> deliver(Map<String, ? extends Collection<String>> headers, byte[] body) {
    if (stopping || !running) {
      return CompletableFuture.completedFuture(Answer.retry("the operator stops"));
    }
    Delivery delivery;
    List<RescheduledController<?>> wanted;
    ResourceID id;
    try {
      delivery = Delivery.read(headers, body);
      String[] key = delivery.key().split("/", -1);
      wanted = controllersOf(key);
      id = new ResourceID(key[2], key[1].isEmpty() ? null : key[1]);
    } catch (IllegalArgumentException e) {
      log.warn("A delivery is refused: {}", e.getMessage());
      return CompletableFuture.completedFuture(Answer.refuse(e.getMessage()));
    }
    CompletableFuture<Answer> answer;
    try {
      answer = run(delivery, id, wanted);
    } catch (RuntimeException | Error e) {
      answer = CompletableFuture.failedFuture(e);
    }
    CompletableFuture<Answer> bounded =
        answer
            .copy() // the run goes on
            .orTimeout(timeout.toMillis(), TimeUnit.MILLISECONDS)
            .exceptionally(e -> failed(delivery, e));
    inFlight.add(bounded);
    bounded.whenComplete((a, e) -> inFlight.remove(bounded));
    return bounded;
  }

  private Answer failed(Delivery delivery, Throwable e) {
    Throwable cause = e instanceof CompletionException c && c.getCause() != null ? c.getCause() : e;
    log.error("{} cannot be processed now, and comes again", delivery.key(), cause);
    // A sender that was not checked learns that it failed, not why.
    return Answer.retry(verifier == null ? "the delivery failed; the operator's log has the reason" : cause.toString());
  }

  /** The controllers of a key Kind/namespace/name. More than one may be for a kind. */
  private List<RescheduledController<?>> controllersOf(String[] key) {
    if (key.length != 3 || key[0].isEmpty() || key[2].isEmpty()) {
      throw new IllegalArgumentException("a key is Kind/namespace/name: " + String.join("/", key));
    }
    if (!NAME.matcher(key[2]).matches() || !(key[1].isEmpty() || NAME.matcher(key[1]).matches())) {
      throw new IllegalArgumentException("no object has the namespace or the name of the key " + String.join("/", key));
    }
    List<RescheduledController<?>> all = new ArrayList<>();
    for (RescheduledController<?> c : controllers.values()) {
      if (c.kind().equals(key[0]) && c.namespaced() != key[1].isEmpty()) {
        all.add(c);
      }
    }
    if (all.isEmpty()) {
      throw new IllegalArgumentException(
          "no controller is for " + key[0] + (key[1].isEmpty() ? " without" : " with") + " a namespace, only for "
              + controllers.values().stream().map(RescheduledController::kind).distinct().sorted().toList());
    }
    return all;
  }

  private CompletableFuture<Answer> run(Delivery delivery, ResourceID id, List<RescheduledController<?>> wanted) {
    Wake wake = Wake.read(delivery, getKubernetesClient().getKubernetesSerialization());
    Instant now = latest(wake, wanted);
    Map<RescheduledController<?>, CompletableFuture<RescheduledController.Next>> runs = new LinkedHashMap<>();
    for (RescheduledController<?> c : wanted) {
      Wake.Due due = wake.dues().get(c.name());
      boolean waits = due != null && due.at().isAfter(now) && !wake.repeated();
      runs.put(c, waits ? CompletableFuture.completedFuture(waiting(due)) : c.deliver(id, wake));
    }
    return CompletableFuture.allOf(runs.values().toArray(new CompletableFuture<?>[0]))
        .thenApply(
            v -> {
              Map<String, RescheduledController.Next> next = new LinkedHashMap<>();
              runs.forEach((c, f) -> next.put(c.name(), f.join()));
              log.debug("{} {}: {}", delivery.key(), delivery.event().attribute("type"), next);
              RescheduledController.Next first = next.values().iterator().next();
              return retryBySource && first.failure() != null && !first.gone()
                  ? failedRun(first)
                  : answer(delivery.key(), id, next);
            });
  }

  /** Until when a controller's part of a timer is due: now, or the earliest if the clock of the source is ahead. */
  private static Instant latest(Wake wake, List<RescheduledController<?>> wanted) {
    Instant now = Instant.now();
    Instant first = null;
    for (RescheduledController<?> c : wanted) {
      Wake.Due due = wake.dues().get(c.name());
      if (due == null) {
        return now; // it is run, so no other needs to be
      }
      first = first == null || due.at().isBefore(first) ? due.at() : first;
    }
    return first != null && first.isAfter(now) ? first : now;
  }

  private static RescheduledController.Next waiting(Wake.Due due) {
    long left = Math.max(1, Duration.between(Instant.now(), due.at()).toMillis() + 1);
    return RescheduledController.Next.waiting(OptionalLong.of(left), due.retry());
  }

  private Answer failedRun(RescheduledController.Next next) {
    // A sender that was not checked learns that it failed, not why.
    String why = verifier == null ? "the reconcile failed; the operator's log has the reason" : next.failure().toString();
    Answer a = next.exhausted() ? Answer.text(422, why) : Answer.retry(why);
    return next.delayMillis().isPresent() ? a.after(Duration.ofMillis(next.delayMillis().getAsLong())) : a;
  }

  /** The soonest of the controllers decides; the others' times travel in the data. */
  private Answer answer(String key, ResourceID id, Map<String, RescheduledController.Next> next) {
    OptionalLong soonest =
        next.values().stream().flatMapToLong(n -> n.delayMillis().stream()).min();
    if (next.values().stream().allMatch(RescheduledController.Next::gone)) {
      return Answer.never();
    }
    if (soonest.isEmpty()) {
      return Answer.done();
    }
    Instant now = Instant.now();
    List<Map<String, Object>> parts = new ArrayList<>();
    next.forEach(
        (name, n) ->
            n.delayMillis()
                .ifPresent(
                    ms -> parts.add(Map.of("name", name, "at", now.plusMillis(ms).toString(), "retry", n.retry()))));
    Map<String, Object> data =
        Map.of("namespace", id.getNamespace().orElse(""), "name", id.getName(), "controllers", parts);
    CloudEvent due =
        new CloudEvent(
            Map.of("specversion", "1.0", "id", UUID.randomUUID().toString(), "source", "/josdk", "type", Wake.DUE,
                "subject", key, "reschedulekey", key, "datacontenttype", "application/json"),
            getKubernetesClient().getKubernetesSerialization().asJson(data).getBytes(java.nio.charset.StandardCharsets.UTF_8));
    return Answer.again(Duration.ofMillis(soonest.getAsLong()), due);
  }

  /** Asks for a delivery for what only this process has seen. */
  private void ask(String kind, ResourceID id) {
    String key = kind + "/" + id.getNamespace().orElse("") + "/" + id.getName();
    if (schedules == null) {
      log.warn("An event of {} waits for the next delivery: withSchedules would ask for one", key);
      return;
    }
    if (stopping || !asked.add(key)) {
      return;
    }
    asking.execute(
        () -> {
          try {
            schedules.schedule(key, Request.now().withPolicy(Policy.EARLIEST).withReason("an event in the operator"));
          } catch (RuntimeException e) {
            log.warn("{} cannot be scheduled; its event waits for the next delivery", key, e);
          } finally {
            asked.remove(key);
          }
        });
  }

  /** Its threads end when there is nothing to ask. When too much waits, the thread asks that has the event. */
  private static ExecutorService asking() {
    ThreadPoolExecutor pool =
        new ThreadPoolExecutor(ASKING, ASKING, 10, TimeUnit.SECONDS, new ArrayBlockingQueue<>(MOST_ASKED),
            work -> {
              Thread t = new Thread(work, "reschedule-asks");
              t.setDaemon(true);
              return t;
            },
            new ThreadPoolExecutor.CallerRunsPolicy());
    pool.allowCoreThreadTimeOut(true);
    return pool;
  }
}
