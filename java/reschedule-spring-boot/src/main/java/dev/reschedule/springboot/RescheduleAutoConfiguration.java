package dev.reschedule.springboot;

import java.util.function.BiConsumer;
import java.util.function.Consumer;

import org.springframework.beans.factory.ObjectProvider;
import org.springframework.boot.ApplicationRunner;
import org.springframework.boot.autoconfigure.AutoConfiguration;
import org.springframework.boot.autoconfigure.condition.ConditionalOnMissingBean;
import org.springframework.boot.context.properties.EnableConfigurationProperties;
import org.springframework.context.annotation.Bean;

import io.fabric8.kubernetes.client.KubernetesClient;
import io.javaoperatorsdk.operator.Operator;
import io.javaoperatorsdk.operator.api.config.ConfigurationServiceOverrider;
import io.javaoperatorsdk.operator.api.reconciler.Reconciler;

import dev.reschedule.josdk.RescheduleOperator;

/**
 * Makes the Operator bean of all reconcilers of the application, before JOSDK's own starter does, if that is there; its
 * properties of reconcilers count then.
 */
@AutoConfiguration(beforeName = "io.javaoperatorsdk.operator.springboot.starter.OperatorAutoConfiguration")
@ConditionalOnMissingBean(Operator.class)
@EnableConfigurationProperties(RescheduleProperties.class)
public class RescheduleAutoConfiguration {

  @Bean(destroyMethod = "stop")
  RescheduleOperator operator(
      RescheduleProperties properties,
      ObjectProvider<KubernetesClient> client,
      ObjectProvider<Consumer<ConfigurationServiceOverrider>> overriders,
      ObjectProvider<BiConsumer<Operator, Reconciler<?>>> registerer,
      ObjectProvider<Reconciler<?>> reconcilers) {
    RescheduleOperator operator =
        new RescheduleOperator(
            o -> {
              client.ifAvailable(o::withKubernetesClient);
              overriders.orderedStream().forEach(one -> one.accept(o));
            });
    if (properties.port() != null) {
      operator.withPort(properties.port());
    }
    if (properties.audience() != null) {
      operator.withAudience(properties.audience(), properties.subjects().toArray(new String[0]));
    }
    if (properties.retryBySource()) {
      operator.withRetryBySource();
    }
    BiConsumer<Operator, Reconciler<?>> register = registerer.getIfAvailable(() -> Operator::register);
    reconcilers.orderedStream().forEach(r -> register.accept(operator, r));
    return operator;
  }

  /** Starts it when the application is ready. A second start, by JOSDK's starter, does nothing. */
  @Bean
  ApplicationRunner rescheduleOperatorStarter(RescheduleOperator operator) {
    return arguments -> operator.start();
  }
}
