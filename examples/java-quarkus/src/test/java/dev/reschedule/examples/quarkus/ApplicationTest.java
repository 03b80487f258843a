package dev.reschedule.examples.quarkus;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;

import java.util.Map;

import jakarta.inject.Inject;

import org.junit.jupiter.api.Test;

import io.fabric8.kubernetes.api.model.ConfigMap;
import io.fabric8.kubernetes.client.Config;
import io.javaoperatorsdk.operator.Operator;
import io.javaoperatorsdk.operator.api.reconciler.Context;
import io.javaoperatorsdk.operator.api.reconciler.ControllerConfiguration;
import io.javaoperatorsdk.operator.api.reconciler.Reconciler;
import io.javaoperatorsdk.operator.api.reconciler.UpdateControl;
import io.quarkus.arc.ClientProxy;
import io.quarkus.test.common.QuarkusTestResource;
import io.quarkus.test.common.QuarkusTestResourceLifecycleManager;
import io.quarkus.test.junit.QuarkusTest;

import dev.reschedule.josdk.RescheduleOperator;
import dev.reschedule.testing.WebPages;

/** The application with no more rights than its manifests give it, behind the source that they have. */
@QuarkusTest
@QuarkusTestResource(ApplicationTest.Pod.class)
class ApplicationTest {

  private static WebPages pages;

  /** What a pod has in its environment. */
  public static class Pod implements QuarkusTestResourceLifecycleManager {
    @Override
    public Map<String, String> start() {
      try {
        pages = new WebPages("webpage-quarkus");
      } catch (Exception e) {
        throw new IllegalStateException(e);
      }
      Config c = pages.config();
      return Map.of("quarkus.kubernetes-client.api-server-url", c.getMasterUrl(), "quarkus.kubernetes-client.token", c.getOauthToken(),
          "quarkus.kubernetes-client.trust-certs", "true", "quarkus.kubernetes-client.namespace", c.getNamespace(),
          "reschedule.subjects", pages.sender());
    }

    @Override
    public void stop() {}
  }

  /** A reconciler may inject the operator that it is registered with. */
  @ControllerConfiguration
  static class Injected implements Reconciler<ConfigMap> {
    @Inject Operator operator;

    @Override
    public UpdateControl<ConfigMap> reconcile(ConfigMap object, Context<ConfigMap> context) {
      return UpdateControl.noUpdate();
    }
  }

  @Inject Operator operator;

  /** A page is made, and the operator, which watches nothing, serves it. */
  @Test
  void aPageIsServed() throws Exception {
    pages.deliverTo(assertInstanceOf(RescheduleOperator.class, ClientProxy.unwrap(operator)).port());
    pages.served("hello");
    assertEquals(2, operator.getRegisteredControllersNumber());
  }
}
