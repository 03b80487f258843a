package dev.reschedule.examples.webpage;

import java.util.Map;

import io.fabric8.kubernetes.api.model.IntOrString;
import io.fabric8.kubernetes.api.model.Service;
import io.fabric8.kubernetes.api.model.ServiceBuilder;
import io.javaoperatorsdk.operator.api.config.informer.Informer;
import io.javaoperatorsdk.operator.api.reconciler.Context;
import io.javaoperatorsdk.operator.processing.dependent.kubernetes.CRUDKubernetesDependentResource;
import io.javaoperatorsdk.operator.processing.dependent.kubernetes.KubernetesDependent;

/** The address of the page in the cluster. */
@KubernetesDependent(informer = @Informer(labelSelector = WebPageReconciler.SELECTOR))
public class Address extends CRUDKubernetesDependentResource<Service, WebPage> {
  @Override
  protected Service desired(WebPage page, Context<WebPage> context) {
    return new ServiceBuilder()
        .withMetadata(WebPageReconciler.named(page))
        .withNewSpec()
        .withSelector(Map.of("page", page.getMetadata().getName()))
        .addNewPort().withPort(80).withTargetPort(new IntOrString(80)).endPort()
        .endSpec()
        .build();
  }
}
