package dev.reschedule.springboot;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.net.ConnectException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;

import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.springframework.boot.WebApplicationType;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.boot.builder.SpringApplicationBuilder;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;

import io.fabric8.kubernetes.api.model.Namespaced;
import io.fabric8.kubernetes.api.model.ObjectMetaBuilder;
import io.fabric8.kubernetes.client.CustomResource;
import io.fabric8.kubernetes.client.KubernetesClient;
import io.fabric8.kubernetes.model.annotation.Group;
import io.fabric8.kubernetes.model.annotation.Version;
import io.javaoperatorsdk.operator.Operator;
import io.javaoperatorsdk.operator.api.reconciler.Context;
import io.javaoperatorsdk.operator.api.reconciler.ControllerConfiguration;
import io.javaoperatorsdk.operator.api.reconciler.Reconciler;
import io.javaoperatorsdk.operator.api.reconciler.UpdateControl;

import dev.reschedule.josdk.RescheduleOperator;
import dev.reschedule.testing.Cluster;

/** A Spring Boot application with the module on its class path. */
@Timeout(150)
class SpringOperatorTest {

  private static final List<String> runs = new CopyOnWriteArrayList<>();

  /** A kind of the tests. */
  @Group("spring.reschedule.dev")
  @Version("v1")
  static class Letter extends CustomResource<Void, Void> implements Namespaced {}

  @ControllerConfiguration
  static class LetterReconciler implements Reconciler<Letter> {
    @Override
    public UpdateControl<Letter> reconcile(Letter letter, Context<Letter> context) {
      runs.add(letter.getMetadata().getName());
      return UpdateControl.<Letter>noUpdate().rescheduleAfter(Duration.ofMinutes(5));
    }
  }

  @Configuration
  @EnableAutoConfiguration
  static class Application {
    @Bean
    KubernetesClient client() throws Exception {
      return Cluster.get().client();
    }

    @Bean
    LetterReconciler reconciler() {
      return new LetterReconciler();
    }
  }

  /** The application has an operator that is woken by deliveries, and ends with it. */
  @Test
  void theBeanIsOurs() throws Exception {
    Cluster cluster = Cluster.get();
    cluster.define("spring.reschedule.dev", "Letter", "Namespaced");
    Letter l = new Letter();
    l.setMetadata(new ObjectMetaBuilder().withName("a").withNamespace("default").build());
    cluster.client.resource(l).create();
    HttpRequest delivery;
    try (var context =
        new SpringApplicationBuilder(Application.class).web(WebApplicationType.NONE).run("--reschedule.port=0")) {
      RescheduleOperator operator = context.getBean(RescheduleOperator.class);
      delivery =
          HttpRequest.newBuilder(URI.create("http://127.0.0.1:" + operator.port() + "/"))
              .header("Ce-Specversion", "1.0").header("Ce-Id", "1").header("Ce-Source", "/s")
              .header("Ce-Type", "dev.reschedule.due").header("Ce-Reschedulekey", "Letter/default/a")
              .POST(HttpRequest.BodyPublishers.noBody())
              .build();
      HttpResponse<String> answer = HttpClient.newHttpClient().send(delivery, HttpResponse.BodyHandlers.ofString());
      assertEquals(200, answer.statusCode(), answer.body());
      assertEquals(List.of("a"), runs);
    }
    assertThrows(ConnectException.class, () -> HttpClient.newHttpClient().send(delivery, HttpResponse.BodyHandlers.ofString()));
  }

  @Configuration
  static class Own {
    @Bean
    Operator operator() throws Exception {
      KubernetesClient client = Cluster.get().client();
      return new RescheduleOperator(o -> o.withKubernetesClient(client)).withPort(0);
    }
  }

  /** An Operator bean of the application's own stays the only one, and the application starts it. */
  @Test
  void anOwnBeanStays() {
    try (var context =
        new SpringApplicationBuilder(Application.class, Own.class).web(WebApplicationType.NONE).run()) {
      assertEquals(1, context.getBeansOfType(Operator.class).size());
      assertFalse(context.getBean(Operator.class).getRuntimeInfo().isStarted());
    }
  }
}
