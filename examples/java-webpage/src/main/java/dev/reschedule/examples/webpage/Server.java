package dev.reschedule.examples.webpage;

import java.util.Map;

import io.fabric8.kubernetes.api.model.apps.Deployment;
import io.fabric8.kubernetes.api.model.apps.DeploymentBuilder;
import io.javaoperatorsdk.operator.api.config.informer.Informer;
import io.javaoperatorsdk.operator.api.reconciler.Context;
import io.javaoperatorsdk.operator.processing.dependent.kubernetes.CRUDKubernetesDependentResource;
import io.javaoperatorsdk.operator.processing.dependent.kubernetes.KubernetesDependent;

/** The pods that serve the page. */
@KubernetesDependent(informer = @Informer(labelSelector = WebPageReconciler.SELECTOR))
public class Server extends CRUDKubernetesDependentResource<Deployment, WebPage> {

  private static final String IMAGE =
      System.getenv().getOrDefault("PAGE_IMAGE", "docker.io/library/nginx:1.29-alpine");

  @Override
  protected Deployment desired(WebPage page, Context<WebPage> context) {
    Map<String, String> labels = Map.of("page", page.getMetadata().getName());
    return new DeploymentBuilder()
        .withMetadata(WebPageReconciler.named(page))
        .withNewSpec()
        .withReplicas(page.getSpec().getReplicas())
        .withNewSelector().withMatchLabels(labels).endSelector()
        .withNewTemplate()
        .withNewMetadata().withLabels(labels).endMetadata()
        .withNewSpec()
        .addNewContainer()
        .withName("server")
        .withImage(IMAGE)
        .addNewPort().withContainerPort(80).endPort()
        .addNewVolumeMount().withName("html").withMountPath("/usr/share/nginx/html").endVolumeMount()
        .endContainer()
        .addNewVolume()
        .withName("html")
        .withNewConfigMap().withName(page.getMetadata().getName()).endConfigMap()
        .endVolume()
        .endSpec()
        .endTemplate()
        .endSpec()
        .build();
  }
}
