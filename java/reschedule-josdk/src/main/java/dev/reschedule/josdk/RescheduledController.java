package dev.reschedule.josdk;

import java.util.ArrayList;
import java.util.List;
import java.util.OptionalLong;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Executor;
import java.util.function.BooleanSupplier;
import java.util.function.Consumer;

import io.fabric8.kubernetes.api.model.HasMetadata;
import io.fabric8.kubernetes.api.model.KubernetesResourceList;
import io.fabric8.kubernetes.api.model.Namespaced;
import io.fabric8.kubernetes.client.KubernetesClient;
import io.fabric8.kubernetes.client.dsl.MixedOperation;
import io.fabric8.kubernetes.client.dsl.Resource;
import io.fabric8.kubernetes.client.informers.cache.Cache;
import io.javaoperatorsdk.operator.api.config.ControllerConfiguration;
import io.javaoperatorsdk.operator.api.reconciler.Context;
import io.javaoperatorsdk.operator.api.reconciler.Reconciler;
import io.javaoperatorsdk.operator.api.reconciler.UpdateControl;
import io.javaoperatorsdk.operator.processing.Controller;
import io.javaoperatorsdk.operator.processing.event.DeliveredEventProcessor;
import io.javaoperatorsdk.operator.processing.event.DeliveredEventProcessor.Settled;
import io.javaoperatorsdk.operator.processing.event.Event;
import io.javaoperatorsdk.operator.processing.event.EventProcessor;
import io.javaoperatorsdk.operator.processing.event.ResourceID;
import io.javaoperatorsdk.operator.processing.event.source.informer.DeliveredReads;

/** A controller of JOSDK that deliveries wake, and that says what is next. */
class RescheduledController<P extends HasMetadata> extends Controller<P> {

  /**
   * The state of an object after a delivery.
   *
   * @param delayMillis when it is due again
   * @param retry how many retries there have been
   * @param gone the object does not exist any more
   * @param runs how often it was run
   * @param failure the exception of its last run; null if it did not fail
   * @param exhausted whether that run was the last of its retries
   */
  record Next(
      OptionalLong delayMillis, int retry, boolean gone, int runs, Exception failure, boolean exhausted) {

    /** Nothing was run. */
    static Next waiting(OptionalLong delayMillis, int retry) {
      return new Next(delayMillis, retry, false, 0, null, false);
    }
  }

  // It has no initializer: it is set while the constructor of the super class runs.
  private DeliveredEventProcessor<P> processor;
  private final OnDemandClient onDemand;
  /** Objects with an event that this process has seen, and whose own delivery has not come yet. */
  private final Set<ResourceID> dirty = ConcurrentHashMap.newKeySet();
  private final Consumer<ResourceID> asks;
  private final BooleanSupplier retryBySource;

  /**
   * Makes the controller.
   *
   * @param asks asks the source for a delivery, for what happens in this process only
   * @param retryBySource whether the source counts the retries
   */
  RescheduledController(
      Reconciler<P> reconciler,
      ControllerConfiguration<P> configuration,
      KubernetesClient client,
      Consumer<ResourceID> asks,
      BooleanSupplier retryBySource) {
    this(reconciler, configuration, new OnDemandClient(client), asks, retryBySource);
  }

  private RescheduledController(
      Reconciler<P> reconciler,
      ControllerConfiguration<P> configuration,
      OnDemandClient onDemand,
      Consumer<ResourceID> asks,
      BooleanSupplier retryBySource) {
    super(reconciler, configuration, onDemand.proxy());
    this.onDemand = onDemand;
    onDemand.onRead(this::read);
    this.asks = asks;
    this.retryBySource = retryBySource;
  }

  String name() {
    return getConfiguration().getName();
  }

  String kind() {
    return HasMetadata.getKind(getConfiguration().getResourceClass());
  }

  boolean namespaced() {
    return Namespaced.class.isAssignableFrom(getConfiguration().getResourceClass());
  }

  // Event sources ask for it while they are made, the first of them when there is no manager yet. The super class sets
  // it again when there is one.
  @Override
  public EventProcessor<P> getEventProcessor() {
    if (processor == null && getEventSourceManager() != null) {
      processor =
          new DeliveredEventProcessor<>(
              getEventSourceManager(),
              (id, written) -> {
                OnDemandInformer<P> informer = onDemand.primaryOf(id);
                if (informer != null) {
                  informer.put(written);
                }
              },
              this::again,
              this::outside);
    }
    return processor;
  }

  @Override
  public MixedOperation<P, KubernetesResourceList<P>, Resource<P>> getCRClient() {
    return OnDemandClient.primary(super.getCRClient());
  }

  /** Returns the operator's own client: what a reconciler gets from its context has informers as ever. */
  @Override
  public KubernetesClient getClient() {
    return onDemand.client();
  }

  /** As in JOSDK; what it writes is compared with what another hand changes meanwhile. */
  @Override
  public UpdateControl<P> reconcile(P object, Context<P> context) throws Exception {
    UpdateControl<P> control = super.reconcile(object, context);
    if (control.isPatchResource()) {
      control.getResource().ifPresent(processor::sends);
    }
    return control;
  }

  @Override
  public synchronized void start(boolean startEventProcessor) {
    super.start(false); // event sources; the processor of the super class never runs
    onDemand.serving();
    if (startEventProcessor) {
      startEventProcessing();
    }
  }

  @Override
  public synchronized void startEventProcessing() {
    getEventProcessor().start();
  }

  @Override
  public synchronized void stop() {
    getEventProcessor().stop();
    super.stop();
  }

  /** As in JOSDK, where the lists of the new informers come as events: the source is asked for what they would find. */
  @Override
  public synchronized void changeNamespaces(Set<String> namespaces) {
    Set<String> before = onDemand.namespaces();
    getEventProcessor().stop();
    super.changeNamespaces(namespaces);
    getEventProcessor().start();
    for (String namespace : onDemand.namespaces()) {
      if (!before.contains(namespace)) {
        onDemand.list(namespace, this::want);
      }
    }
  }

  /** An event of a source that lives in this process, such as polling, with no delivery under way. */
  private void outside(Event event) {
    want(event.getRelatedCustomResourceID());
  }

  private void want(ResourceID id) {
    if (dirty.add(id)) {
      asks.accept(id);
    }
  }

  /**
   * A caller reads an object from the cache of the primary resources. A run that does so wants to know whether its own
   * object has changed meanwhile: JOSDK's PrimaryUpdateAndCacheUtils waits for that when its write meets a conflict.
   */
  private void read(String key) {
    processor.run()
        .filter(id -> key.equals(OnDemandInformer.ANY) || key.equals(keyOf(id)))
        .filter(id -> !DeliveredReads.areJosdks(getEventSourceManager().getControllerEventSource()))
        .ifPresent(this::again);
  }

  /** Reads an object again, and lets JOSDK see it as a watch would. */
  private void again(ResourceID id) {
    OnDemandInformer<P> primary = onDemand.primaryOf(id);
    if (primary == null) {
      return;
    }
    P object = onDemand.read(id);
    P last = primary.known(keyOf(id));
    if (object != null) {
      primary.put(object);
    } else if (last != null) {
      primary.gone(last, false);
    }
  }

  private static String keyOf(ResourceID id) {
    return Cache.namespaceKeyFunc(id.getNamespace().orElse(null), id.getName());
  }

  /** Reconciles one object, if JOSDK would reconcile it for this event. It blocks while it reads. */
  CompletableFuture<Next> deliver(ResourceID id, Wake wake) {
    OnDemandInformer<P> primary = onDemand.primaryOf(id);
    if (primary == null) { // a namespace that the controller does not watch
      return CompletableFuture.completedFuture(new Next(OptionalLong.empty(), 0, true, 0, null, false));
    }
    // 1. What a run reads is not older than the delivery.
    boolean known = processor.knows(id);
    List<CompletableFuture<List<Event>>> lists = lists();
    P object = onDemand.read(id);
    take(lists, id);

    // 2. JOSDK's own event source takes what was read, and its filters judge.
    P last = primary.known(keyOf(id));
    if (object == null) {
      return deliverGone(id, wake, primary, last);
    }
    if (last != null && !last.getMetadata().getUid().equals(object.getMetadata().getUid())) {
      processor.deliver(id, processor.capture(() -> primary.gone(last, true)), null);
    }
    List<Event> events = processor.capture(() -> primary.put(object));
    boolean changed = dirty.remove(id) | processor.overdue(id);
    if (events.isEmpty() && (!wake.isChangeOf(kind(), onDemand::informs) || changed && known)) {
      events = List.of(processor.wake(id));
    }

    // 3. JOSDK's own processor and dispatcher do the rest. A run whose delivery was given up is waited for.
    if (events.isEmpty() && !processor.isOpen(id)) {
      return CompletableFuture.completedFuture(next(id));
    }
    return processor.deliver(id, events, retryOf(wake)).thenApply(s -> next(s, false));
  }

  private CompletableFuture<Next> deliverGone(
      ResourceID id, Wake wake, OnDemandInformer<P> primary, P known) {
    P last = known != null ? known : lastState(wake);
    dirty.remove(id);
    processor.forget(id);
    List<Event> events = List.of();
    if (last != null) {
      events = processor.capture(() -> primary.gone(last, known != null));
    } else if (allEvents() && processor.knows(id)) {
      events = List.of(processor.wake(id)); // JOSDK goes on with the delete event until it succeeds
    }
    if (events.isEmpty()) {
      return CompletableFuture.completedFuture(new Next(OptionalLong.empty(), 0, true, 0, null, false));
    }
    return processor.deliver(id, events, retryOf(wake)).thenApply(s -> next(s, true));
  }

  /**
   * Lists all secondary resources at once. A change is noted while the list holds the lock of its informer: another
   * delivery that shares the list is let go after that, and finds the change of its own object.
   */
  private List<CompletableFuture<List<Event>>> lists() {
    Executor executor = getExecutorServiceManager().cachingExecutorService();
    List<CompletableFuture<List<Event>>> lists = new ArrayList<>();
    for (OnDemandInformer<?> informer : onDemand.secondaries()) {
      lists.add(CompletableFuture.supplyAsync(() -> processor.capture(informer::refresh, this::note), executor));
    }
    return lists;
  }

  private void note(Event e) {
    dirty.add(e.getRelatedCustomResourceID());
  }

  /** Waits for the lists. Other objects that changed wait for their own delivery, except while they are reconciled. */
  private void take(List<CompletableFuture<List<Event>>> lists, ResourceID id) {
    for (var list : lists) {
      for (Event e : join(list)) {
        ResourceID other = e.getRelatedCustomResourceID();
        if (!other.equals(id) && processor.isOpen(other) && dirty.remove(other)) {
          processor.handleEvent(e); // JOSDK runs it once more
        }
      }
    }
  }

  private static <T> T join(CompletableFuture<T> f) {
    try {
      return f.join();
    } catch (CompletionException e) {
      if (e.getCause() instanceof RuntimeException r) {
        throw r;
      }
      throw e;
    }
  }

  /** The state of a key that nothing was run for, which an event may have brought here before its time. */
  Next next(ResourceID id) {
    return Next.waiting(processor.remaining(id), processor.retries(id));
  }

  private Next next(Settled s, boolean absent) {
    boolean gone = s.gone() || absent && !(allEvents() && s.delayMillis().isPresent());
    return new Next(s.delayMillis(), s.retryAttempt(), gone, s.runs(), s.failure(), s.exhausted());
  }

  private boolean allEvents() {
    return getConfiguration().triggerReconcilerOnAllEvents();
  }

  private Integer retryOf(Wake wake) {
    Wake.Due due = wake.dues().get(name());
    if (retryBySource.getAsBoolean()) {
      // What the source has counted, and what there was before an answer that was no failure, as of a rate limiter.
      return wake.attempt() + (due == null ? 0 : due.retry());
    }
    return due == null ? null : (Integer) due.retry();
  }

  private P lastState(Wake wake) {
    return wake.deleted() && wake.kind().equals(kind())
        ? getClient().getKubernetesSerialization().convertValue(wake.data(), getConfiguration().getResourceClass())
        : null;
  }
}
