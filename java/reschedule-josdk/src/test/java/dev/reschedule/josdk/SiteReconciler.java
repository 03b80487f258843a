package dev.reschedule.josdk;

import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;

import io.fabric8.kubernetes.api.model.ConfigMap;
import io.fabric8.kubernetes.api.model.ConfigMapBuilder;
import io.fabric8.kubernetes.api.model.ObjectMetaBuilder;
import io.fabric8.kubernetes.api.model.Secret;
import io.javaoperatorsdk.operator.api.config.informer.InformerEventSourceConfiguration;
import io.javaoperatorsdk.operator.api.reconciler.Cleaner;
import io.javaoperatorsdk.operator.api.reconciler.Context;
import io.javaoperatorsdk.operator.api.reconciler.ControllerConfiguration;
import io.javaoperatorsdk.operator.api.reconciler.DeleteControl;
import io.javaoperatorsdk.operator.api.reconciler.ErrorStatusUpdateControl;
import io.javaoperatorsdk.operator.api.reconciler.EventSourceContext;
import io.javaoperatorsdk.operator.api.reconciler.PrimaryUpdateAndCacheUtils;
import io.javaoperatorsdk.operator.api.reconciler.Reconciler;
import io.javaoperatorsdk.operator.api.reconciler.UpdateControl;
import io.javaoperatorsdk.operator.processing.event.ResourceID;
import io.javaoperatorsdk.operator.processing.event.source.EventSource;
import io.javaoperatorsdk.operator.processing.event.source.informer.InformerEventSource;
import io.javaoperatorsdk.operator.processing.retry.GradualRetry;

/**
 * Finalizer, retries, reschedules, error status, an owned secondary, and one that a mapper and an index find. Nothing in it
 * knows where it runs.
 */
@ControllerConfiguration(name = "sites")
@GradualRetry(maxAttempts = 3, initialInterval = 300, intervalMultiplier = 1.5)
public class SiteReconciler implements Reconciler<Site>, Cleaner<Site> {

  private static final String SHARED = "shared";

  private final Recorder recorder;
  private final Map<String, Integer> instants = new ConcurrentHashMap<>();
  private InformerEventSource<ConfigMap, Site> shared;

  SiteReconciler(Recorder recorder) {
    this.recorder = recorder;
  }

  @Override
  public List<EventSource<?, Site>> prepareEventSources(EventSourceContext<Site> context) {
    shared =
        new InformerEventSource<>(
            InformerEventSourceConfiguration.from(ConfigMap.class, Site.class)
                .withName(SHARED)
                .withLabelSelector("app=shared")
                .withInformerListLimit(2L)
                .withSecondaryToPrimaryMapper(
                    m -> Set.of(new ResourceID(m.getMetadata().getLabels().get("site"), m.getMetadata().getNamespace())))
                .build(),
            context);
    shared.addIndexers(Map.of("site", m -> List.of(m.getMetadata().getLabels().get("site"))));
    return List.of(
        new InformerEventSource<>(
            InformerEventSourceConfiguration.from(ConfigMap.class, Site.class)
                .withName("owned").withLabelSelector("app=site").build(),
            context),
        shared);
  }

  private String owned(Context<Site> context, Site site) {
    return context.getSecondaryResources(ConfigMap.class).stream()
        .filter(m -> m.getMetadata().getName().equals("site-" + site.getMetadata().getName()))
        .findFirst()
        .map(m -> m.getData().get("content"))
        .orElse("none");
  }

  @Override
  public UpdateControl<Site> reconcile(Site site, Context<Site> context) throws Exception {
    String name = site.getMetadata().getName();
    String retry =
        context.getRetryInfo().map(r -> r.getAttemptCount() + (r.isLastAttempt() ? "(last)" : "")).orElse("-");
    String owned = owned(context, site);
    String found =
        shared.byIndex("site", name).stream()
            .filter(m -> m.getMetadata().getNamespace().equals(site.getMetadata().getNamespace()))
            .findFirst().map(m -> " shared=" + m.getData().get("content")).orElse("");
    int count = site.getStatus() == null ? 0 : site.getStatus().count;
    recorder.record(
        name, "gen=" + site.getMetadata().getGeneration() + " retry=" + retry + " owned=" + owned + found);
    switch (site.getSpec().mode) {
      case "retry" -> {
        if (context.getRetryInfo().map(r -> r.getAttemptCount()).orElse(0) < 2) {
          throw new IllegalStateException("not yet");
        }
        return UpdateControl.noUpdate();
      }
      case "exhaust" -> throw new IllegalStateException("never");
      case "errstatus" -> {
        if (count < 2) {
          throw new IllegalStateException("written in the status");
        }
        return UpdateControl.noUpdate();
      }
      case "poll" -> {
        return count < 3
            ? UpdateControl.patchStatus(status(site, count + 1, null)).rescheduleAfter(Duration.ofMillis(500))
            : UpdateControl.noUpdate();
      }
      case "instant" -> {
        return instants.merge(name, 1, Integer::sum) < 3
            ? UpdateControl.<Site>noUpdate().rescheduleAfter(0) // reschedule(), since JOSDK 5.3
            : UpdateControl.noUpdate();
      }
      case "long" -> {
        return UpdateControl.<Site>noUpdate().rescheduleAfter(Duration.ofHours(1));
      }
      case "slow" -> {
        Thread.sleep(3000);
        recorder.record(name, "end");
        return UpdateControl.noUpdate();
      }
      case "hang" -> {
        Thread.sleep(600_000);
        return UpdateControl.noUpdate();
      }
      case "laborious" -> { // its status names the process that is at it
        int retries = context.getRetryInfo().map(r -> r.getAttemptCount()).orElse(0);
        context.getClient().resource(site).editStatus(s -> {
          s.setStatus(status(site, retries, System.getenv("HOSTNAME")).getStatus());
          return s;
        });
        Thread.sleep(5000); // a pod that is deleted without grace goes on for up to 2 s
        if (retries < 2) {
          throw new IllegalStateException("not yet");
        }
        return UpdateControl.patchStatus(status(site, retries, "done"));
      }
      case "error" -> {
        if (instants.merge(name, 1, Integer::sum) < 2) {
          throw new NoClassDefFoundError("an Error of the JVM");
        }
        return UpdateControl.noUpdate();
      }
      case "dynamic" -> { // an event source that it registers while it runs, as a workflow does
        var source =
            context.eventSourceRetriever().dynamicallyRegisterEventSource(
                new InformerEventSource<>(
                    InformerEventSourceConfiguration.from(ConfigMap.class, Site.class).withName("late").withLabelSelector("app=late").build(),
                    context.eventSourceRetriever().eventSourceContextForDynamicRegistration()));
        recorder.record(name, "late=" + source.getSecondaryResources(site).size());
        return UpdateControl.noUpdate();
      }
      case "conflict" -> { // its object changes between its read and its write
        if (!site.getSpec().content.equals("changed")) {
          change(site, context);
          updateStatus(site, context);
        }
        return UpdateControl.noUpdate();
      }
      case "superseded" -> { // its object changes while a run of it fails
        if (!site.getSpec().content.equals("changed")) {
          change(site, context);
          throw new IllegalStateException("superseded");
        }
        return UpdateControl.noUpdate();
      }
      case "overlapped" -> { // its object changes before its own write, which JOSDK recognises
        if (!site.getSpec().content.equals("changed")) {
          change(site, context);
        }
        return UpdateControl.patchStatus(status(site, 1, null));
      }
      case "leaving" -> { // an event source comes and goes, as with an activation condition
        var sources = context.eventSourceRetriever();
        if (site.getSpec().content.isEmpty()) {
          sources.dynamicallyRegisterEventSource(
              new InformerEventSource<>(
                  InformerEventSourceConfiguration.from(Secret.class, Site.class).withName("leaving").build(),
                  sources.eventSourceContextForDynamicRegistration()));
        } else {
          sources.dynamicallyDeRegisterEventSource("leaving");
        }
        return UpdateControl.noUpdate();
      }
      case "watch" -> {
        return UpdateControl.noUpdate();
      }
      default -> {
        if (owned.equals("none")) {
          context.getClient().resource(desired(site)).create();
        } else if (!owned.equals(site.getSpec().content)) {
          context.getClient().resource(desired(site)).update();
        }
        return UpdateControl.noUpdate();
      }
    }
  }

  private static void change(Site site, Context<Site> context) {
    context.getClient().resources(Site.class).inNamespace(site.getMetadata().getNamespace())
        .withName(site.getMetadata().getName())
        .edit(s -> {
          s.getSpec().content = "changed";
          return s;
        });
  }

  @SuppressWarnings("removal") // deprecated since JOSDK 5.3, and in use
  private static void updateStatus(Site site, Context<Site> context) {
    PrimaryUpdateAndCacheUtils.updateStatusAndCacheResource(
        site, context,
        s -> {
          s.setStatus(status(s, 1, null).getStatus());
          return s;
        });
  }

  @Override
  public DeleteControl cleanup(Site site, Context<Site> context) {
    String owned = owned(context, site);
    recorder.record(site.getMetadata().getName(), "cleanup owned=" + owned);
    if (!owned.equals("none")) {
      context.getClient().resource(desired(site)).delete();
      return DeleteControl.noFinalizerRemoval().rescheduleAfter(Duration.ofSeconds(60));
    }
    return DeleteControl.defaultDelete();
  }

  @Override
  public ErrorStatusUpdateControl<Site> updateErrorStatus(Site site, Context<Site> context, Exception e) {
    if (!site.getSpec().mode.equals("errstatus")) {
      return ErrorStatusUpdateControl.defaultErrorProcessing();
    }
    int count = site.getStatus() == null ? 0 : site.getStatus().count;
    return ErrorStatusUpdateControl.patchStatus(status(site, count + 1, e.getMessage())).rescheduleAfter(Duration.ofMillis(500));
  }

  /** With server-side apply only what is meant is sent. */
  static Site status(Site site, int count, String message) {
    Site s = new Site();
    s.setMetadata(
        new ObjectMetaBuilder()
            .withName(site.getMetadata().getName())
            .withNamespace(site.getMetadata().getNamespace())
            .build());
    s.setSpec(null);
    s.setStatus(new Site.Status());
    s.getStatus().count = count;
    s.getStatus().message = message;
    return s;
  }

  private static ConfigMap desired(Site site) {
    var cm =
        new ConfigMapBuilder()
            .withNewMetadata()
            .withName("site-" + site.getMetadata().getName())
            .withNamespace(site.getMetadata().getNamespace())
            .withLabels(Map.of("app", "site"))
            .endMetadata()
            .withData(Map.of("content", site.getSpec().content))
            .build();
    cm.addOwnerReference(site);
    return cm;
  }
}
