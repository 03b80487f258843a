package dev.reschedule.examples.webpage;

import java.time.Duration;

import io.javaoperatorsdk.operator.Operator;

import dev.reschedule.josdk.RescheduleOperator;

/** The operator: resident, or at zero behind a RescheduleSource. Nothing else in it knows the difference. */
public final class Main {

  private Main() {}

  /** Registers the controllers, and starts. */
  static void start(Operator operator) {
    operator.register(new WebPageReconciler());
    operator.installShutdownHook(Duration.ofSeconds(20));
    operator.start();
  }

  public static void main(String[] args) {
    if (System.getenv("RESIDENT") != null) {
      start(new Operator());
      return;
    }
    RescheduleOperator operator = new RescheduleOperator();
    String audience = System.getenv("AUDIENCE"); // the sink.audience of the source
    start(audience == null ? operator : operator.withAudience(audience));
  }
}
