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

/**
 * The operator with its manifests, and with no more rights than they give it, against a real API server, and the real
 * adapter that watches for it.
 */
@Timeout(240)
class WebPageTest {

  /** The ServiceAccount of the operator. */
  private static final String ACCOUNT = "webpages";

  private Cluster cluster;
  private Operator operator;
  private KubernetesClient client;
  private String namespace;
  private boolean cold;

  @AfterEach
  void stop() {
    if (operator != null) {
      operator.stop();
    }
  }

  private static String manifest(String file) throws Exception {
    return Files.readString(Path.of("config", file));
  }

  /** Resident, at zero, or with a new operator for each change: pages are made, repaired, changed and refused alike. */
  @ParameterizedTest
  @ValueSource(strings = {"resident", "serverless", "cold"})
  void pagesAreServed(String form) throws Exception {
    cluster = Cluster.get();
    cluster.apply(manifest("crd/webpages.yaml"));
    cluster.served("examples.reschedule.dev", "v1", "webpages");
    String ns = cluster.namespace("webpage-" + form);
    namespace = ns;
    client = client(null);
    String folder = form.equals("resident") ? form : "serverless";
    cluster.apply(ns, manifest(folder + "/rbac.yaml"));
    if (form.equals("resident")) {
      operator = new Operator(o -> o.withKubernetesClient(client(ACCOUNT)));
      operator.register(new WebPageReconciler());
      operator.start();
    } else {
      cold = form.equals("cold");
      RescheduleOperator o = serve(0);
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
    renew();
    client.configMaps().withName("hello").edit(m -> {
      m.getData().put("index.html", "<html>forged</html>");
      return m;
    });
    until("it is repaired", () -> html().equals("<html>one</html>"));
    renew();
    client.services().withName("hello").delete();
    until("it is made again", () -> client.services().withName("hello").get() != null);

    // The page changes.
    renew();
    change("two");
    await("the page has no <html>", WebPage.Status::getMessage);
    renew();
    change("<html>three</html>");
    await("served", WebPage.Status::getMessage);
    assertEquals("<html>three</html>", html());
    assertEquals(List.of("WebPage"), deployment().getMetadata().getOwnerReferences().stream().map(r -> r.getKind()).toList());
  }

  /** A client with the rights of an account of the namespace, or with all if there is none. */
  private KubernetesClient client(String account) {
    ConfigBuilder config = new ConfigBuilder(cluster.client.getConfiguration()).withNamespace(namespace);
    if (account != null) {
      config.withImpersonateUsername("system:serviceaccount:" + namespace + ":" + account);
    }
    return new KubernetesClientBuilder().withConfig(config.build()).build();
  }

  private RescheduleOperator serve(int port) {
    RescheduleOperator o = new RescheduleOperator(c -> c.withKubernetesClient(client(ACCOUNT))).withPort(port);
    operator = o;
    operator.register(new WebPageReconciler());
    operator.start();
    return o;
  }

  /** Another process takes over, as after a while without a change. */
  private void renew() {
    if (cold) {
      int port = ((RescheduleOperator) operator).port();
      operator.stop();
      serve(port);
    }
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
