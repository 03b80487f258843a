package dev.reschedule.examples.webpage;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.function.Function;

import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

import io.fabric8.kubernetes.api.model.ObjectMetaBuilder;
import io.fabric8.kubernetes.api.model.apps.Deployment;
import io.fabric8.kubernetes.client.ConfigBuilder;
import io.fabric8.kubernetes.client.KubernetesClient;
import io.fabric8.kubernetes.client.KubernetesClientBuilder;
import io.javaoperatorsdk.operator.Operator;

import dev.reschedule.josdk.RescheduleOperator;
import dev.reschedule.testing.Cluster;

/** The operator with its manifests, against a real API server, and the real adapter that watches for it. */
@Timeout(240)
class WebPageTest {

  private Operator operator;
  private KubernetesClient client;

  @AfterEach
  void stop() {
    if (operator != null) {
      operator.stop();
    }
  }

  private static String manifest(String file) throws Exception {
    return Files.readString(Path.of("config", file));
  }

  /** Resident or at zero: pages are made, repaired, changed and refused in the same way. */
  @ParameterizedTest
  @ValueSource(strings = {"resident", "serverless"})
  void pagesAreServed(String form) throws Exception {
    Cluster cluster = Cluster.get();
    cluster.apply(manifest("crd/webpages.yaml"));
    cluster.served("examples.reschedule.dev", "v1", "webpages");
    String ns = cluster.namespace("webpage-" + form);
    client =
        new KubernetesClientBuilder()
            .withConfig(new ConfigBuilder(cluster.client.getConfiguration()).withNamespace(ns).build())
            .build();
    if (form.equals("resident")) {
      operator = new Operator(o -> o.withKubernetesClient(client));
      operator.register(new WebPageReconciler());
      operator.start();
    } else {
      RescheduleOperator o = new RescheduleOperator(c -> c.withKubernetesClient(client)).withPort(0);
      operator = o;
      operator.register(new WebPageReconciler());
      operator.start();
      cluster.apply(ns, manifest("serverless/rbac.yaml"));
      // There is no Knative Serving, so the sink is a URI.
      String source = manifest("serverless/source.yaml");
      cluster.apply(ns, source.substring(0, source.indexOf("    ref:")) + "    uri: http://127.0.0.1:" + o.port() + "/\n"
          + source.substring(source.indexOf("  delivery:")));
      cluster.sourceReady(ns, "webpages");
    }

    WebPage page = new WebPage();
    page.setMetadata(new ObjectMetaBuilder().withName("hello").withNamespace(ns).build());
    page.setSpec(new WebPage.Spec());
    page.getSpec().setHtml("<html>one</html>");
    cluster.client.resource(page).create();
    await("no pod serves it yet", WebPage.Status::getMessage);
    assertEquals("<html>one</html>", html());
    assertEquals(80, client.services().withName("hello").get().getSpec().getPorts().get(0).getPort());

    // Its Deployment has a pod.
    client.resource(deployment()).editStatus(d -> {
      d.getStatus().setReplicas(1);
      d.getStatus().setReadyReplicas(1);
      return d;
    });
    await("served", WebPage.Status::getMessage);

    // Another hand changes it, and deletes it.
    client.configMaps().withName("hello").edit(m -> {
      m.getData().put("index.html", "<html>forged</html>");
      return m;
    });
    until("it is repaired", () -> html().equals("<html>one</html>"));
    client.services().withName("hello").delete();
    until("it is made again", () -> client.services().withName("hello").get() != null);

    // The page changes.
    change("two");
    await("the page has no <html>", WebPage.Status::getMessage);
    change("<html>three</html>");
    await("served", WebPage.Status::getMessage);
    assertEquals("<html>three</html>", html());
    assertEquals(List.of("WebPage"), deployment().getMetadata().getOwnerReferences().stream().map(r -> r.getKind()).toList());
  }

  private Deployment deployment() {
    return client.apps().deployments().withName("hello").get();
  }

  private String html() {
    return client.configMaps().withName("hello").get().getData().get("index.html");
  }

  private void change(String html) {
    client.resources(WebPage.class).withName("hello").edit(p -> {
      p.getSpec().setHtml(html);
      return p;
    });
  }

  private void await(String want, Function<WebPage.Status, String> of) throws InterruptedException {
    until(want, () -> {
      WebPage p = client.resources(WebPage.class).withName("hello").get();
      return p.getStatus() != null && want.equals(of.apply(p.getStatus()))
          && p.getMetadata().getGeneration().equals(p.getStatus().getObservedGeneration());
    });
  }

  private void until(String what, java.util.function.BooleanSupplier so) throws InterruptedException {
    long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);
    while (!so.getAsBoolean()) {
      assertTrue(System.nanoTime() < end, () -> "waited in vain for: " + what + ", it is "
          + client.resources(WebPage.class).withName("hello").get());
      TimeUnit.MILLISECONDS.sleep(20);
    }
  }
}
