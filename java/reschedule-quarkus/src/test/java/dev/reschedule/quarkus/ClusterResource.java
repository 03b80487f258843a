package dev.reschedule.quarkus;

import java.util.Map;

import io.fabric8.kubernetes.api.model.ObjectMetaBuilder;
import io.fabric8.kubernetes.client.Config;
import io.quarkus.test.common.QuarkusTestResourceLifecycleManager;

import dev.reschedule.testing.Cluster;

/** Points Quarkus at the cluster of the tests. */
public class ClusterResource implements QuarkusTestResourceLifecycleManager {

  @Override
  public Map<String, String> start() {
    try {
      Cluster cluster = Cluster.get();
      cluster.define("quarkus.reschedule.dev", "Notice", "Namespaced");
      Notice n = new Notice();
      n.setMetadata(new ObjectMetaBuilder().withName("a").withNamespace("default").build());
      n.setSpec(new Notice.Spec());
      n.getSpec().text = "hello";
      cluster.client.resource(n).create();
      Config c = cluster.client.getConfiguration();
      return Map.of("quarkus.kubernetes-client.api-server-url", c.getMasterUrl(),
          "quarkus.kubernetes-client.token", c.getAutoOAuthToken(), "quarkus.kubernetes-client.trust-certs", "true");
    } catch (Exception e) {
      throw new IllegalStateException(e);
    }
  }

  @Override
  public void stop() {}
}
