package dev.reschedule.josdk;

import java.io.ByteArrayInputStream;
import java.net.ServerSocket;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyPair;
import java.security.KeyPairGenerator;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;

import io.fabric8.kubernetes.api.model.NamespaceBuilder;
import io.fabric8.kubernetes.client.Config;
import io.fabric8.kubernetes.client.ConfigBuilder;
import io.fabric8.kubernetes.client.KubernetesClient;
import io.fabric8.kubernetes.client.KubernetesClientBuilder;

/**
 * A real kube-apiserver with its etcd, one for all tests. The environment variable KUBEBUILDER_ASSETS names the
 * directory of the two programs.
 */
final class Kube {

  private static final String TOKEN = "the-administrator";

  private static final List<Process> launched = new CopyOnWriteArrayList<>();

  private static Kube one;

  final KubernetesClient client;
  private final String url;

  static synchronized Kube get() throws Exception {
    if (one == null) {
      one = new Kube();
    }
    return one;
  }

  private Kube() throws Exception {
    String assets = System.getenv("KUBEBUILDER_ASSETS");
    if (assets == null) {
      throw new IllegalStateException("KUBEBUILDER_ASSETS is not set: run the tests with make java");
    }
    Path dir = Files.createTempDirectory("kube");
    Runtime.getRuntime().addShutdownHook(new Thread(() -> end(dir)));
    String etcd = "http://127.0.0.1:" + freePort();
    String peer = "http://127.0.0.1:" + freePort();
    int port = freePort();
    url = "https://127.0.0.1:" + port;
    KeyPairGenerator rsa = KeyPairGenerator.getInstance("RSA");
    rsa.initialize(2048);
    KeyPair sa = rsa.generateKeyPair();
    Path key = pem(dir.resolve("sa.key"), "PRIVATE KEY", sa.getPrivate().getEncoded());
    Path pub = pem(dir.resolve("sa.pub"), "PUBLIC KEY", sa.getPublic().getEncoded());
    Path tokens = Files.writeString(dir.resolve("tokens.csv"), TOKEN + ",admin,admin,system:masters\n");
    launch(dir, "etcd", List.of(assets + "/etcd", "--data-dir", dir.resolve("etcd").toString(), "--unsafe-no-fsync",
        "--log-level", "error", "--listen-client-urls", etcd, "--advertise-client-urls", etcd,
        "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default=" + peer));
    Process api = launch(dir, "api", List.of(assets + "/kube-apiserver", "--etcd-servers", etcd, "--bind-address",
        "127.0.0.1", "--secure-port", String.valueOf(port), "--cert-dir", dir.resolve("certs").toString(),
        "--token-auth-file", tokens.toString(), "--authorization-mode", "RBAC", "--service-account-issuer",
        "https://kubernetes.default.svc", "--service-account-key-file", pub.toString(),
        "--service-account-signing-key-file", key.toString(), "--service-cluster-ip-range", "10.96.0.0/16",
        "--endpoint-reconciler-type", "none", "--profiling=false"));
    client = client();
    long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(120);
    while (!ready()) {
      if (!api.isAlive() || System.nanoTime() > end) {
        throw new IllegalStateException("the API server is not ready: " + Files.readString(dir.resolve("api.log")));
      }
      TimeUnit.MILLISECONDS.sleep(100);
    }
    for (String[] crd : new String[][] {{"Site", "Namespaced"}, {"Page", "Namespaced"}, {"Tick", "Cluster"}}) {
      define(crd[0], crd[1]);
    }
  }

  private boolean ready() {
    try {
      return "ok".equals(client.raw("/readyz"));
    } catch (RuntimeException e) {
      return false;
    }
  }

  private void define(String kind, String scope) throws InterruptedException {
    client
            .load(
                new ByteArrayInputStream(
                    """
                    apiVersion: apiextensions.k8s.io/v1
                    kind: CustomResourceDefinition
                    metadata: {name: %1$ss.sample.reschedule.dev}
                    spec:
                      group: sample.reschedule.dev
                      scope: %3$s
                      names: {kind: %2$s, plural: %1$ss, singular: %1$s, listKind: %2$sList}
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
                        .formatted(kind.toLowerCase(java.util.Locale.ROOT), kind, scope)
                        .getBytes(StandardCharsets.UTF_8)))
            .create();
    String plural = kind.toLowerCase(java.util.Locale.ROOT) + "s";
    long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);
    while (client.raw("/apis/sample.reschedule.dev/v1/" + plural) == null && System.nanoTime() < end) {
      TimeUnit.MILLISECONDS.sleep(50);
    }
  }

  Config config() {
    return new ConfigBuilder(Config.empty()).withMasterUrl(url).withOauthToken(TOKEN).withTrustCerts(true).build();
  }

  /** Returns a client of its own, as each process has one. */
  KubernetesClient client() {
    return new KubernetesClientBuilder().withConfig(config()).build();
  }

  /** Returns the environment with which another process reaches the server. */
  Map<String, String> environment() {
    return Map.of("KUBERNETES_MASTER", url, "KUBERNETES_AUTH_TOKEN", TOKEN, "KUBERNETES_TRUST_CERTIFICATES", "true",
        "KUBECONFIG", "/nonexistent");
  }

  String namespace(String name) {
    client.resource(new NamespaceBuilder().withNewMetadata().withName(name).endMetadata().build()).create();
    return name;
  }

  static int freePort() {
    try (ServerSocket s = new ServerSocket(0)) {
      return s.getLocalPort();
    } catch (java.io.IOException e) {
      throw new java.io.UncheckedIOException(e);
    }
  }

  private static Path pem(Path file, String label, byte[] der) throws java.io.IOException {
    return Files.writeString(file, "-----BEGIN " + label + "-----\n"
        + Base64.getMimeEncoder(64, new byte[] {'\n'}).encodeToString(der) + "\n-----END " + label + "-----\n");
  }

  /** Launches a program that ends with this process. */
  static Process launch(Path dir, String name, List<String> command) throws java.io.IOException {
    Process p =
        new ProcessBuilder(new ArrayList<>(command))
            .redirectErrorStream(true)
            .redirectOutput(dir.resolve(name + ".log").toFile())
            .start();
    launched.add(p);
    return p;
  }

  private static void end(Path dir) {
    launched.forEach(Process::destroyForcibly);
    try {
      for (Process p : launched) {
        p.waitFor(5, TimeUnit.SECONDS);
      }
    } catch (InterruptedException e) {
      Thread.currentThread().interrupt();
    }
    try (Stream<Path> all = Files.walk(dir)) {
      all.sorted(Comparator.reverseOrder()).forEach(f -> f.toFile().delete());
    } catch (java.io.IOException e) {
      System.err.println("files of the tests are left in " + dir + ": " + e);
    }
  }
}
