package io.javaoperatorsdk.operator.processing.event;

import java.lang.reflect.Field;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Proxy;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalLong;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.BiConsumer;
import java.util.function.Consumer;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import io.fabric8.kubernetes.api.model.HasMetadata;
import io.javaoperatorsdk.operator.api.monitoring.Metrics;
import io.javaoperatorsdk.operator.processing.Controller;
import io.javaoperatorsdk.operator.processing.event.source.controller.ControllerEventSource;
import io.javaoperatorsdk.operator.processing.event.source.informer.DeliveredReads;
import io.javaoperatorsdk.operator.processing.event.source.timer.TimerEventSource;
import io.javaoperatorsdk.operator.processing.retry.Retry;

/**
 * JOSDK's own event processor, with two of its package-private methods overridden, which is why it is in this package:
 * where it keeps its timers, and what happens when a run has ended. The super class decides about events,
 * retries, rate limits and finalizers.
 */
public class DeliveredEventProcessor<P extends HasMetadata> extends EventProcessor<P> {

  /**
   * The state of a key when JOSDK has nothing more to do for it at once.
   *
   * @param runs how often it was run
   * @param delayMillis the rest of its timer
   * @param retryAttempt how many retries there have been since it last succeeded
   * @param gone whether its finalizer was removed, or it was gone before its run
   * @param failure the exception of its last run; null if it did not fail
   * @param exhausted whether that run was the last of its retries
   */
  public record Settled(
      int runs,
      OptionalLong delayMillis,
      int retryAttempt,
      boolean gone,
      Exception failure,
      boolean exhausted) {}

  private static final class Open {
    final CompletableFuture<Settled> done = new CompletableFuture<>();
    int runs;
    boolean gone;
    Exception failure;
    boolean exhausted;
  }

  /** JOSDK handles each Exception of a run, and never ends a run that threw an Error. */
  private static final class Dispatcher<P extends HasMetadata> extends ReconciliationDispatcher<P> {
    private final Map<ExecutionScope<P>, Error> errors = new ConcurrentHashMap<>();
    private final Map<ExecutionScope<P>, P> sent = new ConcurrentHashMap<>();
    private final ThreadLocal<ExecutionScope<P>> run = new ThreadLocal<>();
    private final ThreadLocal<Integer> finished = ThreadLocal.withInitial(() -> 0); // of the runs that end in this thread
    private Consumer<ResourceID> skipped;

    Dispatcher(Controller<P> controller) {
      super(controller);
    }

    /**
     * JOSDK before 5.5.1 skips a run whose object has left its cache meanwhile, and tells only its metrics that it ended.
     */
    Metrics listening(Metrics to) {
      return (Metrics)
          Proxy.newProxyInstance(
              Metrics.class.getClassLoader(), new Class<?>[] {Metrics.class},
              (proxy, method, arguments) -> {
                if (ENDS.contains(method.getName())) {
                  ended((HasMetadata) arguments[0]);
                }
                try {
                  return method.invoke(to, arguments);
                } catch (InvocationTargetException e) {
                  throw e.getCause();
                }
              });
    }

    private void ended(HasMetadata object) {
      if (finished.get() > 0) {
        finished.set(finished.get() - 1);
      } else {
        skipped.accept(ResourceID.fromResource(object));
      }
    }

    @Override
    public PostExecutionControl<P> handleExecution(ExecutionScope<P> scope) {
      run.set(scope);
      try {
        return super.handleExecution(scope);
      } catch (Error e) {
        errors.put(scope, e);
        return PostExecutionControl.exceptionDuringExecution(new IllegalStateException(e));
      } finally {
        run.remove();
      }
    }
  }

  /** How JOSDK 5.3 and 5.2 name the end of a run in their metrics. */
  private static final Set<String> ENDS = Set.of("reconciliationFinished", "reconciliationExecutionFinished");

  private static final Logger log = LoggerFactory.getLogger(DeliveredEventProcessor.class);

  private final Dispatcher<P> dispatcher;
  private final ControllerEventSource<P> primaries;
  private final Controller<P> controller;
  private final ResourceStateManager states;
  private final Retry retry;
  private final DeliveredTimers<P> timers = new DeliveredTimers<>(this::handleEvent);
  private final Map<ResourceID, Open> open = new ConcurrentHashMap<>();
  private final ThreadLocal<Consumer<Event>> captured = new ThreadLocal<>();
  private final BiConsumer<ResourceID, P> written;
  private final Consumer<ResourceID> again;
  private final Consumer<Event> outside;

  /**
   * Makes the processor of a controller.
   *
   * @param written takes the object that a run has written, before the run ends
   * @param again reads an object again, and tells the event source of the primary resources
   * @param outside takes events of other event sources while no delivery of their key is here
   */
  public DeliveredEventProcessor(
      EventSourceManager<P> manager,
      BiConsumer<ResourceID, P> written,
      Consumer<ResourceID> again,
      Consumer<Event> outside) {
    this(manager, new Dispatcher<>(manager.getController()), written, again, outside);
  }

  private DeliveredEventProcessor(
      EventSourceManager<P> manager,
      Dispatcher<P> dispatcher,
      BiConsumer<ResourceID, P> written,
      Consumer<ResourceID> again,
      Consumer<Event> outside) {
    super(
        manager.getController().getConfiguration(),
        dispatcher,
        manager,
        dispatcher.listening(manager.getController().getConfiguration().getConfigurationService().getMetrics()));
    this.dispatcher = dispatcher;
    dispatcher.skipped = this::skipped;
    this.controller = manager.getController();
    this.primaries = manager.getControllerEventSource();
    this.retry = controller.getConfiguration().getRetry();
    this.written = written;
    this.again = again;
    this.outside = outside;
    try {
      // Read, not written. The field has this name in JOSDK 5.0 to 5.5.
      Field f = EventProcessor.class.getDeclaredField("resourceStateManager");
      f.setAccessible(true);
      states = (ResourceStateManager) f.get(this);
    } catch (ReflectiveOperationException e) {
      throw new IllegalStateException("this version of JOSDK does not fit: docs/josdk.md names the versions", e);
    }
  }

  @Override
  TimerEventSource<P> retryEventSource() {
    return timers;
  }

  /** Runs the action, and returns the events that event sources propagate meanwhile. They are not handled. */
  public List<Event> capture(Runnable action) {
    return capture(action, e -> {});
  }

  /** As above; each event also goes to the consumer at once, while its event source holds its locks. */
  public List<Event> capture(Runnable action, Consumer<Event> at) {
    Consumer<Event> outer = captured.get();
    List<Event> events = new ArrayList<>();
    captured.set(
        e -> {
          events.add(e);
          at.accept(e);
        });
    try {
      action.run();
    } finally {
      captured.set(outer);
    }
    return events;
  }

  // It takes no lock until it is known that the event goes on: event sources call it with a lock of their own.
  @Override
  public void handleEvent(Event event) {
    Consumer<Event> to = captured.get();
    if (to != null) {
      to.accept(event);
    } else if (!isOpen(event.getRelatedCustomResourceID()) || !handleIfOpen(event)) {
      outside.accept(event);
    }
  }

  /** The delivery may have ended before this gets the lock: nothing would keep the outcome of a run after it. */
  private synchronized boolean handleIfOpen(Event event) {
    if (!isOpen(event.getRelatedCustomResourceID())) {
      return false;
    }
    super.handleEvent(event);
    return true;
  }

  /** Reports whether a delivery of the key is here. */
  public boolean isOpen(ResourceID id) {
    return open.containsKey(id);
  }

  /** Returns the object that this thread reconciles, if it does, and if it is not JOSDK that asks. */
  public Optional<ResourceID> run() {
    return Thread.holdsLock(this)
        ? Optional.empty()
        : Optional.ofNullable(dispatcher.run.get()).map(ExecutionScope::getResourceID);
  }

  /** Notes that the run of this thread writes its object, and not only its status. */
  public void sends(P object) {
    dispatcher.sent.put(dispatcher.run.get(), object);
  }

  /** Reports whether this process has seen the key before. */
  public boolean knows(ResourceID id) {
    return states.contains(id);
  }

  /** Returns the event of a timer, also when this process has not seen the object yet. */
  public synchronized Event wake(ResourceID id) {
    states.getOrCreate(id); // JOSDK ignores events of objects that it does not know
    return new Event(id);
  }

  /** Returns the rest of the timer that this process knows of. */
  public OptionalLong remaining(ResourceID id) {
    return timers.remaining(id);
  }

  /** Reports whether a timer would have fired by now. An event has taken its place at the source. */
  public boolean overdue(ResourceID id) {
    OptionalLong left = timers.remaining(id);
    return left.isPresent() && left.getAsLong() <= 1;
  }

  /** Forgets the timer of a key. */
  public void forget(ResourceID id) {
    timers.cancelOnceSchedule(id);
  }

  /**
   * Hands events of a key to JOSDK. The result completes when JOSDK has nothing more to do for it at once. It fails with
   * the Error of a run, and when the processor stops.
   *
   * @param attempt how many retries there have been according to the delivery; null if it does not say
   */
  public synchronized CompletableFuture<Settled> deliver(ResourceID id, List<Event> events, Integer attempt) {
    if (!isRunning()) {
      return CompletableFuture.failedFuture(new IllegalStateException("the operator stops"));
    }
    boolean first = !isOpen(id);
    Open o = open.computeIfAbsent(id, i -> new Open());
    try {
      if (first) {
        restore(id, attempt);
      }
      events.forEach(super::handleEvent);
    } catch (RuntimeException | Error e) { // such as no thread for the run
      if (first) {
        crashed(id, e);
      }
      throw e;
    }
    if (!busy(id)) {
      settle(id, o); // filtered, rate limited, or gone
    }
    return o.done;
  }

  private void restore(ResourceID id, Integer attempt) {
    if (attempt == null) {
      return; // a fresh event: this process knows the retries, or there is nothing to know
    }
    if (attempt > 0 && retry != null) {
      ResourceState state = states.getOrCreate(id);
      if (state.getRetry() == null || state.getRetry().getAttemptCount() != attempt) {
        state.setRetry(new RestoredRetry(retry.initExecution(), attempt));
      }
    } else {
      states.get(id).ifPresent(s -> s.setRetry(null));
    }
  }

  @Override
  void eventProcessingFinished(ExecutionScope<P> scope, PostExecutionControl<P> control) {
    dispatcher.finished.set(dispatcher.finished.get() + 1);
    ResourceID id = scope.getResourceID();
    Error error = dispatcher.errors.remove(scope);
    P sent = dispatcher.sent.remove(scope);
    if (error != null) {
      crashed(id, error);
      return;
    }
    try {
      finish(scope, sent, control);
    } catch (RuntimeException | Error e) { // JOSDK calls a Retry, metrics and filters, and refuses a negative wait
      crashed(id, e);
    }
  }

  private void finish(ExecutionScope<P> scope, P sent, PostExecutionControl<P> control) {
    ResourceID id = scope.getResourceID();
    // What a watch would report, for JOSDK's filters to judge. Before the lock, see handleEvent.
    List<Event> seen =
        control.exceptionDuringExecution()
            ? capture(() -> look(id))
            : control.getUpdatedCustomResource().or(() -> DeliveredReads.written(primaries, id))
                .map(result -> capture(() -> wrote(scope, sent, result))).orElse(List.of());
    synchronized (this) {
      Open o = open.get(id);
      for (Event e : seen) {
        if (e.getRelatedCustomResourceID().equals(id)) {
          super.handleEvent(e);
        }
      }
      boolean last = isLastAttempt(id);
      super.eventProcessingFinished(scope, control);
      if (o == null) {
        return;
      }
      o.runs++;
      o.failure = control.getRuntimeException().orElse(null);
      o.exhausted = o.failure != null && last;
      o.gone |= control.isFinalizerRemoved();
      if (!busy(id)) {
        settle(id, o);
      }
    }
  }

  /** A change that came while a run failed has JOSDK run it once more at once, and not count the attempt. */
  private void look(ResourceID id) {
    try {
      again.accept(id);
    } catch (RuntimeException e) {
      log.debug("{} cannot be read after a run that failed", id, e);
    }
  }

  /**
   * JOSDK recognises what a run has written, and drops it. A watch would report a change that another hand made before it
   * on its own.
   */
  private void wrote(ExecutionScope<P> scope, P sent, P result) {
    written.accept(scope.getResourceID(), result);
    P before = scope.getResource();
    if (new Overtaken(controller.getClient().getKubernetesSerialization(), controller.getConfiguration().isGenerationAware())
        .is(before, sent, result)) {
      primaries.onUpdate(before, result);
    }
  }

  /** The delivery fails and comes again. The key is free, as before the run. */
  private synchronized void crashed(ResourceID id, Throwable error) {
    states.get(id).ifPresent(s -> s.setUnderProcessing(false));
    Open o = open.remove(id);
    if (o != null) {
      o.done.completeExceptionally(error);
    } else {
      log.error("A run of {} that no delivery waits for has failed", id, error);
    }
  }

  /** The object is gone. Without this the key would stay under processing, and its deliveries would wait for ever. */
  private synchronized void skipped(ResourceID id) {
    if (primaries.get(id).isPresent()) { // a delivery has brought another one since
      crashed(id, new IllegalStateException("the object was created again while JOSDK skipped a run"));
      return;
    }
    states.get(id).ifPresent(s -> s.setUnderProcessing(false));
    Open o = open.get(id);
    if (o != null) {
      o.gone = true;
      settle(id, o);
    }
  }

  private boolean busy(ResourceID id) {
    return states.get(id).map(ResourceState::isUnderProcessing).orElse(false);
  }

  private void settle(ResourceID id, Open o) {
    open.remove(id);
    o.done.complete(
        new Settled(
            o.runs, timers.remaining(id), retries(id), o.gone, o.failure, o.exhausted));
  }

  private boolean isLastAttempt(ResourceID id) {
    return retry == null
        || states.get(id).map(ResourceState::getRetry).orElseGet(retry::initExecution).isLastAttempt();
  }

  /** Returns how many retries of the key there have been since it last succeeded, as far as is known. */
  public int retries(ResourceID id) {
    return states.get(id).map(ResourceState::getRetry).map(r -> r.getAttemptCount()).orElse(0);
  }

  /** Nothing begins any more, and the deliveries that are here fail. Their source sends them again. */
  @Override
  public void stop() {
    List<Open> left;
    synchronized (this) {
      super.stop();
      left = List.copyOf(open.values());
      open.clear();
    }
    left.forEach(o -> o.done.completeExceptionally(new IllegalStateException("the operator stops")));
  }
}
