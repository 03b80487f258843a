package dev.reschedule.quarkus;

import java.util.List;
import java.util.Optional;

import jakarta.annotation.Priority;
import jakarta.enterprise.context.ApplicationScoped;
import jakarta.enterprise.inject.Instance;
import jakarta.enterprise.inject.Produces;
import jakarta.inject.Singleton;

import org.eclipse.microprofile.config.inject.ConfigProperty;

import io.fabric8.kubernetes.api.model.HasMetadata;
import io.javaoperatorsdk.operator.Operator;
import io.javaoperatorsdk.operator.api.config.ConfigurationService;
import io.javaoperatorsdk.operator.api.reconciler.Reconciler;
import io.quarkus.arc.DefaultBean;
import io.quarkiverse.operatorsdk.runtime.api.ConfigurableReconciler;

import dev.reschedule.josdk.RescheduleOperator;

/**
 * Makes the Operator bean. It takes the place of the extension's own, which is a default bean too, and gives way to a bean
 * of the application. The extension starts and stops it.
 */
@Singleton
public class RescheduleOperatorProducer {

  @ConfigProperty(name = "reschedule.audience")
  Optional<String> audience;

  @ConfigProperty(name = "reschedule.subjects")
  Optional<List<String>> subjects;

  @ConfigProperty(name = "reschedule.port")
  Optional<Integer> port;

  @ConfigProperty(name = "reschedule.retry-by-source", defaultValue = "false")
  boolean retryBySource;

  @Produces
  @DefaultBean
  @Priority(1) // the extension's has 0
  @ApplicationScoped // a proxy, so that reconcilers may inject it
  Operator operator(
      ConfigurationService configuration, Instance<Reconciler<? extends HasMetadata>> reconcilers) {
    RescheduleOperator operator = new RescheduleOperator(configuration);
    port.ifPresent(operator::withPort);
    audience.ifPresent(a -> operator.withAudience(a, subjects.orElse(List.of()).toArray(new String[0])));
    if (retryBySource) {
      operator.withRetryBySource();
    }
    for (Reconciler<? extends HasMetadata> reconciler : reconcilers) {
      register(operator, reconciler);
    }
    return operator;
  }

  @SuppressWarnings({"unchecked", "rawtypes"}) // the extension has it raw
  private static <P extends HasMetadata> void register(Operator operator, Reconciler<P> reconciler) {
    if (reconciler instanceof ConfigurableReconciler configurable) {
      operator.register(reconciler, o -> configurable.updateConfigurationFrom(o));
    } else {
      operator.register(reconciler);
    }
  }
}
