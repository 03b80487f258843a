package dev.reschedule.josdk;

import java.time.Duration;
import java.util.concurrent.TimeUnit;

import io.javaoperatorsdk.operator.api.reconciler.Context;
import io.javaoperatorsdk.operator.api.reconciler.ControllerConfiguration;
import io.javaoperatorsdk.operator.api.reconciler.MaxReconciliationInterval;
import io.javaoperatorsdk.operator.api.reconciler.Reconciler;
import io.javaoperatorsdk.operator.api.reconciler.UpdateControl;
import io.javaoperatorsdk.operator.processing.retry.GradualRetry;

/** Cluster-scoped, with a maximal interval, and more than one controller for the kind. */
@ControllerConfiguration(
    maxReconciliationInterval = @MaxReconciliationInterval(interval = 700, timeUnit = TimeUnit.MILLISECONDS))
@GradualRetry(maxAttempts = 2, initialInterval = 300, intervalMultiplier = 1)
public class TickReconciler implements Reconciler<Tick> {

  private final Recorder recorder;
  private final Duration every;

  TickReconciler(Recorder recorder, Duration every) {
    this.recorder = recorder;
    this.every = every;
  }

  @Override
  public UpdateControl<Tick> reconcile(Tick tick, Context<Tick> context) {
    String name = tick.getMetadata().getName();
    String mode = tick.getSpec().mode;
    String retry =
        context.getRetryInfo().map(r -> r.getAttemptCount() + (r.isLastAttempt() ? "(last)" : "")).orElse("-");
    recorder.record(
        name.substring(0, name.lastIndexOf('-')) + (mode.equals("two") ? "/" + every.toMillis() : ""),
        "gen=" + tick.getMetadata().getGeneration() + " retry=" + retry);
    if (mode.equals("exhaust")) {
      throw new IllegalStateException("never");
    }
    return mode.equals("two") ? UpdateControl.<Tick>noUpdate().rescheduleAfter(every) : UpdateControl.noUpdate();
  }
}
