package dev.reschedule.quarkus;

import java.util.Map;

import io.fabric8.kubernetes.client.Config;
import io.quarkus.test.common.QuarkusTestResourceLifecycleManager;

import dev.reschedule.testing.Cluster;

/** Points Quarkus at the cluster of the tests. */
public class ClusterResource implements QuarkusTestResourceLifecycleManager {

  @Override
  public Map<String, String> start() {
    try {
      Config c = Cluster.get().client.getConfiguration();
      return Map.of("quarkus.kubernetes-client.api-server-url", c.getMasterUrl(),
          "quarkus.kubernetes-client.token", c.getAutoOAuthToken(), "quarkus.kubernetes-client.trust-certs", "true");
    } catch (Exception e) {
      throw new IllegalStateException(e);
    }
  }

  @Override
  public void stop() {}
}
