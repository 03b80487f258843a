package dev.reschedule.testing;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;

import io.fabric8.kubernetes.api.model.GenericKubernetesResource;
import io.fabric8.kubernetes.api.model.authentication.TokenRequestBuilder;
import io.fabric8.kubernetes.client.Config;
import io.fabric8.kubernetes.client.ConfigBuilder;

/** What examples/java-webpage/config installs, in a namespace of its own, for an operator in another framework. */
public final class WebPages {

  private static final Path CONFIG = Path.of("..", "java-webpage", "config");

  private final Cluster cluster;
  private final String namespace;

  /** Makes the namespace, with the kind and the rights. */
  public WebPages(String namespace) throws Exception {
    cluster = Cluster.get();
    this.namespace = cluster.namespace(namespace);
    cluster.apply(manifest("crd/webpages.yaml"));
    cluster.served("examples.reschedule.dev", "v1", "webpages");
    cluster.apply(namespace, manifest("serverless/rbac.yaml"));
  }

  private static String manifest(String file) throws IOException {
    return Files.readString(CONFIG.resolve(file));
  }

  /** Returns how a pod with the ServiceAccount of the operator reaches the API server. */
  public Config config() {
    String token =
        cluster.client.serviceAccounts().inNamespace(namespace).withName("webpages")
            .tokenRequest(new TokenRequestBuilder().withNewSpec().withExpirationSeconds(3600L).endSpec().build())
            .getStatus().getToken();
    return new ConfigBuilder(Config.empty()).withMasterUrl(cluster.client.getConfiguration().getMasterUrl())
        .withTrustCerts(true).withNamespace(namespace).withOauthToken(token).build();
  }

  /** Returns the account whose tokens the source's deliveries have. */
  public String sender() {
    return "system:serviceaccount:" + namespace + ":webpages-oidc-sources.reschedule.dev-reschedulesource";
  }

  /** Makes the source. There is no Knative Serving, so its sink is a URI. */
  public void deliverTo(int port) throws Exception {
    cluster.apply(namespace,
        manifest("serverless/source.yaml").replaceFirst("(?s)    ref:.*?(?=    audience:)", "    uri: http://127.0.0.1:" + port + "/\n"));
    cluster.sourceReady(namespace, "webpages");
  }

  /** Makes a page, and waits until the operator has written into its status, and made what it owns. */
  public void served(String name) throws InterruptedException {
    cluster.apply(namespace,
        """
        apiVersion: examples.reschedule.dev/v1
        kind: WebPage
        metadata: {name: %s}
        spec: {html: <html>one</html>}
        """
            .formatted(name));
    Cluster.until("the page has a status", () -> "no pod serves it yet".equals(message(name)));
    if (cluster.client.services().inNamespace(namespace).withName(name).get() == null) {
      throw new AssertionError("the page has no Service");
    }
  }

  private Object message(String name) {
    GenericKubernetesResource page =
        cluster.client.genericKubernetesResources("examples.reschedule.dev/v1", "WebPage")
            .inNamespace(namespace).withName(name).get();
    return page.getAdditionalProperties().get("status") instanceof Map<?, ?> status ? status.get("message") : null;
  }
}
