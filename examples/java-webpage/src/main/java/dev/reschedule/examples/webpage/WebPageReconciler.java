package dev.reschedule.examples.webpage;

import java.util.Map;

import io.fabric8.kubernetes.api.model.ObjectMeta;
import io.fabric8.kubernetes.api.model.ObjectMetaBuilder;
import io.fabric8.kubernetes.api.model.apps.Deployment;
import io.fabric8.kubernetes.client.KubernetesClientException;
import io.javaoperatorsdk.operator.AggregatedOperatorException;
import io.javaoperatorsdk.operator.api.config.informer.Informer;
import io.javaoperatorsdk.operator.api.reconciler.Constants;
import io.javaoperatorsdk.operator.api.reconciler.Context;
import io.javaoperatorsdk.operator.api.reconciler.ControllerConfiguration;
import io.javaoperatorsdk.operator.api.reconciler.ErrorStatusUpdateControl;
import io.javaoperatorsdk.operator.api.reconciler.Reconciler;
import io.javaoperatorsdk.operator.api.reconciler.UpdateControl;
import io.javaoperatorsdk.operator.api.reconciler.Workflow;
import io.javaoperatorsdk.operator.api.reconciler.dependent.Dependent;

/** Serves pages. JOSDK's workflow has made, repaired or updated the dependents before reconcile is called. */
@Workflow(
    dependents = {
      @Dependent(type = Html.class),
      @Dependent(type = Server.class),
      @Dependent(type = Address.class)
    })
@ControllerConfiguration(
    name = "webpages",
    informer = @Informer(namespaces = Constants.WATCH_CURRENT_NAMESPACE))
public class WebPageReconciler implements Reconciler<WebPage> {

  static final String SELECTOR = "app.kubernetes.io/managed-by=webpages";

  /** The metadata of each dependent. */
  static ObjectMeta named(WebPage page) {
    return new ObjectMetaBuilder()
        .withName(page.getMetadata().getName())
        .withNamespace(page.getMetadata().getNamespace())
        .withLabels(Map.of("app.kubernetes.io/managed-by", "webpages"))
        .build();
  }

  @Override
  public UpdateControl<WebPage> reconcile(WebPage page, Context<WebPage> context) {
    if (!page.getSpec().getHtml().contains("<html")) {
      throw new IllegalArgumentException("the page has no <html>");
    }
    int ready =
        context.getSecondaryResource(Deployment.class)
            .map(d -> d.getStatus() == null || d.getStatus().getReadyReplicas() == null ? 0 : d.getStatus().getReadyReplicas())
            .orElse(0);
    String message = ready > 0 ? "served" : "no pod serves it yet";
    return UpdateControl.patchStatus(status(page, ready, message));
  }

  @Override
  public ErrorStatusUpdateControl<WebPage> updateErrorStatus(WebPage page, Context<WebPage> context, Exception e) {
    return ErrorStatusUpdateControl.patchStatus(status(page, 0, reason(e))); // and JOSDK tries again
  }

  /** The message of the first dependent that failed, without the stack traces that JOSDK puts together. */
  private static String reason(Exception e) {
    Exception first =
        e instanceof AggregatedOperatorException a ? a.getAggregatedExceptions().values().iterator().next() : e;
    return first instanceof KubernetesClientException k && k.getStatus() != null
        ? k.getStatus().getMessage()
        : first.getMessage();
  }

  /** With server-side apply only what is meant is sent. */
  private static WebPage status(WebPage page, int ready, String message) {
    WebPage p = new WebPage();
    p.setMetadata(
        new ObjectMetaBuilder()
            .withName(page.getMetadata().getName())
            .withNamespace(page.getMetadata().getNamespace())
            .build());
    p.setSpec(null);
    p.setStatus(new WebPage.Status());
    p.getStatus().setObservedGeneration(page.getMetadata().getGeneration());
    p.getStatus().setReady(ready);
    p.getStatus().setMessage(message);
    return p;
  }
}
