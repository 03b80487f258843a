package dev.reschedule.examples.webpage;

import java.util.Map;

import io.fabric8.kubernetes.api.model.ConfigMap;
import io.fabric8.kubernetes.api.model.ConfigMapBuilder;
import io.javaoperatorsdk.operator.api.config.informer.Informer;
import io.javaoperatorsdk.operator.api.reconciler.Context;
import io.javaoperatorsdk.operator.processing.dependent.kubernetes.CRUDKubernetesDependentResource;
import io.javaoperatorsdk.operator.processing.dependent.kubernetes.KubernetesDependent;

/** The text of the page. */
@KubernetesDependent(informer = @Informer(labelSelector = WebPageReconciler.SELECTOR))
public class Html extends CRUDKubernetesDependentResource<ConfigMap, WebPage> {
  @Override
  protected ConfigMap desired(WebPage page, Context<WebPage> context) {
    return new ConfigMapBuilder()
        .withMetadata(WebPageReconciler.named(page))
        .withData(Map.of("index.html", page.getSpec().getHtml()))
        .build();
  }
}
