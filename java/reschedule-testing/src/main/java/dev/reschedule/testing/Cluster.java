package dev.reschedule.testing;

import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;

import io.fabric8.kubernetes.api.model.Condition;
import io.fabric8.kubernetes.api.model.GenericKubernetesResource;
import io.fabric8.kubernetes.api.model.HasMetadata;
import io.fabric8.kubernetes.api.model.NamespaceBuilder;
import io.fabric8.kubernetes.client.Config;
import io.fabric8.kubernetes.client.KubernetesClient;
import io.fabric8.kubernetes.client.KubernetesClientBuilder;

/**
 * A real kube-apiserver with the real controller and adapter, one for all tests of a process. There are no nodes. The
 * environment variable CLUSTER_BINARY names the program that runs it; it ends with this process.
 */
public final class Cluster {

  private static Cluster one;

  /** The client of an administrator. */
  public final KubernetesClient client;

  private final String kubeconfig;
  private final Path log;

  /** Returns the cluster, which the first call starts. */
  public static synchronized Cluster get() throws Exception {
    if (one == null) {
      one = new Cluster();
    }
    return one;
  }

  private Cluster() throws Exception {
    log = Files.createTempFile("cluster", ".log");
    Process process =
        new ProcessBuilder(Adapter.program("CLUSTER_BINARY")).redirectError(log.toFile()).start();
    Runtime.getRuntime()
        .addShutdownHook(
            new Thread(
                () -> {
                  try {
                    process.getOutputStream().close(); // it ends with its standard input
                    process.waitFor(30, TimeUnit.SECONDS);
                    Files.deleteIfExists(log);
                  } catch (IOException | InterruptedException e) {
                    System.err.println("the cluster of the tests did not end: " + e);
                  }
                }));
    String line = process.inputReader().readLine();
    if (line == null) {
      throw new IllegalStateException("the cluster is not ready: " + Files.readString(log));
    }
    kubeconfig = line.replaceAll(".*\"kubeconfig\":\"([^\"]*)\".*", "$1");
    client = client();
  }

  /** Returns a client of its own, as each process has one. */
  public KubernetesClient client() throws IOException {
    Config config = Config.fromKubeconfig(Files.readString(Path.of(kubeconfig)));
    return new KubernetesClientBuilder().withConfig(config).build();
  }

  /** Returns the environment with which another process reaches the server. */
  public Map<String, String> environment() {
    return Map.of("KUBECONFIG", kubeconfig);
  }

  /** Makes a namespace, and returns its name. */
  public String namespace(String name) {
    client.resource(new NamespaceBuilder().withNewMetadata().withName(name).endMetadata().build()).create();
    return name;
  }

  /** Applies manifests. */
  public void apply(String manifests) {
    apply(null, manifests);
  }

  /** Applies manifests in a namespace. */
  public void apply(String namespace, String manifests) {
    for (HasMetadata o : client.load(new ByteArrayInputStream(manifests.getBytes(StandardCharsets.UTF_8))).items()) {
      if (namespace != null) {
        o.getMetadata().setNamespace(namespace);
      }
      client.resource(o).forceConflicts().serverSideApply();
    }
  }

  /** Defines a kind whose spec and status may hold anything. */
  public void define(String group, String kind, String scope) throws InterruptedException {
    String plural = kind.toLowerCase(Locale.ROOT) + "s";
    apply(
        """
        apiVersion: apiextensions.k8s.io/v1
        kind: CustomResourceDefinition
        metadata: {name: %3$s.%1$s}
        spec:
          group: %1$s
          scope: %4$s
          names: {kind: %2$s, plural: %3$s, singular: %5$s, listKind: %2$sList}
          versions:
            - name: v1
              served: true
              storage: true
              subresources: {status: {}}
              schema:
                openAPIV3Schema:
                  type: object
                  properties:
                    spec: {type: object, x-kubernetes-preserve-unknown-fields: true}
                    status: {type: object, x-kubernetes-preserve-unknown-fields: true}
        """
            .formatted(group, kind, plural, scope, kind.toLowerCase(Locale.ROOT)));
    served(group, "v1", plural);
  }

  /** Waits until objects of a kind can be made. */
  public void served(String group, String version, String plural) throws InterruptedException {
    until(plural + " are served", () -> client.raw("/apis/" + group + "/" + version + "/" + plural) != null);
  }

  /** Waits until a RescheduleSource is ready: its lists are complete, and changes of objects wake its sink. */
  public void sourceReady(String namespace, String name) throws InterruptedException {
    var source =
        client.genericKubernetesResources("sources.reschedule.dev/v1alpha1", "RescheduleSource")
            .inNamespace(namespace).withName(name);
    try {
      until("the source is ready", () -> isReady(source.get()));
    } catch (AssertionError e) {
      GenericKubernetesResource o = source.get();
      throw new AssertionError(e.getMessage() + ": " + (o == null ? null : o.getAdditionalProperties().get("status")), e);
    }
  }

  private boolean isReady(GenericKubernetesResource o) {
    if (o == null || !(o.getAdditionalProperties().get("status") instanceof Map<?, ?> status)
        || !(status.get("conditions") instanceof List<?> conditions)
        || !(status.get("observedGeneration") instanceof Number seen)
        || seen.longValue() != o.getMetadata().getGeneration()) {
      return false;
    }
    return conditions.stream()
        .map(c -> client.getKubernetesSerialization().convertValue(c, Condition.class))
        .anyMatch(c -> c.getType().equals("Ready") && c.getStatus().equals("True"));
  }

  static void until(String what, BooleanSupplier so) throws InterruptedException {
    long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(90);
    while (!so.getAsBoolean()) {
      if (System.nanoTime() > end) {
        throw new AssertionError("waited in vain: " + what);
      }
      TimeUnit.MILLISECONDS.sleep(50);
    }
  }
}
