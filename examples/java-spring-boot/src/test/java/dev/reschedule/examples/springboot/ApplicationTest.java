package dev.reschedule.examples.springboot;

import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.springframework.boot.builder.SpringApplicationBuilder;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;

import io.fabric8.kubernetes.client.KubernetesClient;
import io.fabric8.kubernetes.client.KubernetesClientBuilder;

import dev.reschedule.josdk.RescheduleOperator;
import dev.reschedule.testing.WebPages;

/** The application with no more rights than its manifests give it, behind the source that they have. */
@Timeout(240)
class ApplicationTest {

  private static WebPages pages;

  /** What a pod has in its environment. */
  @Configuration
  static class Pod {
    @Bean
    KubernetesClient client() {
      return new KubernetesClientBuilder().withConfig(pages.config()).build();
    }
  }

  /** A page is made, and the operator, which watches nothing, serves it. */
  @Test
  void aPageIsServed() throws Exception {
    pages = new WebPages("webpage-spring-boot");
    try (var context =
        new SpringApplicationBuilder(Application.class, Pod.class)
            .run("--reschedule.port=0", "--reschedule.subjects=" + pages.sender())) {
      pages.deliverTo(context.getBean(RescheduleOperator.class).port());
      pages.served("hello");
    }
  }
}
