package dev.reschedule.josdk;

import java.util.Map;

import io.fabric8.kubernetes.api.model.ConfigMap;
import io.fabric8.kubernetes.api.model.ConfigMapBuilder;
import io.javaoperatorsdk.operator.api.config.informer.Informer;
import io.javaoperatorsdk.operator.api.reconciler.Context;
import io.javaoperatorsdk.operator.api.reconciler.ControllerConfiguration;
import io.javaoperatorsdk.operator.api.reconciler.Reconciler;
import io.javaoperatorsdk.operator.api.reconciler.UpdateControl;
import io.javaoperatorsdk.operator.api.reconciler.Workflow;
import io.javaoperatorsdk.operator.api.reconciler.dependent.Dependent;
import io.javaoperatorsdk.operator.processing.dependent.kubernetes.CRUDKubernetesDependentResource;
import io.javaoperatorsdk.operator.processing.dependent.kubernetes.KubernetesDependent;

/** JOSDK's workflow creates, matches, updates and deletes the dependent. */
@Workflow(dependents = @Dependent(type = PageReconciler.Content.class))
@ControllerConfiguration(name = "pages")
public class PageReconciler implements Reconciler<Page> {

  @KubernetesDependent(informer = @Informer(labelSelector = "app=page"))
  public static class Content extends CRUDKubernetesDependentResource<ConfigMap, Page> {
    @Override
    protected ConfigMap desired(Page page, Context<Page> context) {
      return new ConfigMapBuilder()
          .withNewMetadata()
          .withName("page-" + page.getMetadata().getName())
          .withNamespace(page.getMetadata().getNamespace())
          .withLabels(Map.of("app", "page"))
          .endMetadata()
          .withData(Map.of("content", page.getSpec().content))
          .build();
    }
  }

  private final Recorder recorder;

  PageReconciler(Recorder recorder) {
    this.recorder = recorder;
  }

  @Override
  public UpdateControl<Page> reconcile(Page page, Context<Page> context) {
    recorder.record(
        page.getMetadata().getName(),
        "gen=" + page.getMetadata().getGeneration() + " content="
            + context.getSecondaryResource(ConfigMap.class).map(c -> c.getData().get("content")).orElse("none"));
    return UpdateControl.noUpdate();
  }
}
