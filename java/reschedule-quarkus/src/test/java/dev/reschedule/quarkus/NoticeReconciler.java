package dev.reschedule.quarkus;

import java.time.Duration;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;

import jakarta.inject.Inject;

import io.javaoperatorsdk.operator.Operator;
import io.javaoperatorsdk.operator.api.reconciler.Context;
import io.javaoperatorsdk.operator.api.reconciler.ControllerConfiguration;
import io.javaoperatorsdk.operator.api.reconciler.Reconciler;
import io.javaoperatorsdk.operator.api.reconciler.UpdateControl;

@ControllerConfiguration
public class NoticeReconciler implements Reconciler<Notice> {

  static final List<String> runs = new CopyOnWriteArrayList<>();

  @Inject Operator operator;

  @Override
  public UpdateControl<Notice> reconcile(Notice notice, Context<Notice> context) {
    runs.add(notice.getSpec().text + " of " + operator.getRegisteredControllersNumber());
    return UpdateControl.<Notice>noUpdate().rescheduleAfter(Duration.ofMinutes(5));
  }
}
