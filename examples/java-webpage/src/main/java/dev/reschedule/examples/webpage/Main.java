package dev.reschedule.examples.webpage;

import java.time.Duration;

import io.javaoperatorsdk.operator.Operator;

import dev.reschedule.josdk.RescheduleOperator;

/** The operator: resident, or at zero behind a RescheduleSource. Nothing else in it knows the difference. */
public final class Main {

  private Main() {}

  public static void main(String[] args) {
    boolean resident = "true".equals(System.getenv("RESIDENT"));
    Operator operator = resident ? new Operator() : new RescheduleOperator().withAudience("webpages");
    operator.register(new WebPageReconciler());
    operator.installShutdownHook(Duration.ofSeconds(20));
    operator.start();
  }
}
