package dev.reschedule.examples.webpage;

import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.net.InetSocketAddress;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyStore;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;

import org.jose4j.jwk.RsaJsonWebKey;
import org.jose4j.jwk.RsaJwkGenerator;
import org.jose4j.jws.AlgorithmIdentifiers;
import org.jose4j.jws.JsonWebSignature;
import org.jose4j.jwt.JwtClaims;

import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpsConfigurator;
import com.sun.net.httpserver.HttpsServer;

import io.fabric8.kubernetes.client.ConfigBuilder;
import io.fabric8.kubernetes.client.KubernetesClient;
import io.fabric8.kubernetes.client.KubernetesClientBuilder;

import dev.reschedule.josdk.RescheduleOperator;

/**
 * Deliveries against an API server that is not one, in the image build: one makes the dependents, another compares them.
 * So an archive of classes has every class that a delivery needs. The arguments are a key store with the certificate of
 * that server, and the certificate itself.
 */
public final class Training {

  private static final String SENDER = "system:serviceaccount:training:sender";
  /** What was applied, by the path of its list. */
  private static final Map<String, String> applied = new ConcurrentHashMap<>();

  private static final char[] PASSWORD = "training".toCharArray();

  private Training() {}

  public static void main(String[] args) throws Exception {
    RsaJsonWebKey key = RsaJwkGenerator.generateJwk(2048);
    key.setKeyId("training");
    HttpsServer api = HttpsServer.create(new InetSocketAddress("127.0.0.1", 0), 0);
    api.setHttpsConfigurator(new HttpsConfigurator(certificate(Path.of(args[0]))));
    KubernetesClient client =
        new KubernetesClientBuilder()
            .withConfig(
                new ConfigBuilder()
                    .withMasterUrl("https://127.0.0.1:" + api.getAddress().getPort())
                    .withOauthToken("training")
                    .withNamespace("default")
                    .withCaCertFile(args[1])
                    .build())
            .build();
    api.createContext("/", x -> answer(x, client, key));
    api.start();
    RescheduleOperator operator =
        new RescheduleOperator(o -> o.withKubernetesClient(client)).withPort(0).withAudience("webpages", SENDER);
    Main.start(operator);
    deliver(operator.port(), token(key), "dev.knative.apiserver.ref.add", "Ce-Kind", "WebPage");
    deliver(operator.port(), token(key), "dev.reschedule.due", "Ce-Reschedulecause", "apps/v1/Deployment/default/page");
    System.exit(0); // as SIGTERM does: the archive is written when the shutdown hooks have ended
  }

  private static void deliver(int port, String token, String type, String... more) throws Exception {
    HttpRequest delivery =
        HttpRequest.newBuilder(URI.create("http://127.0.0.1:" + port + "/"))
            .header("Authorization", "Bearer " + token)
            .header("Ce-Specversion", "1.0").header("Ce-Id", "1").header("Ce-Source", "/training")
            .header("Ce-Type", type).headers(more)
            .header("Ce-Reschedulekey", "WebPage/default/page").header("Ce-Rescheduleattempt", "0")
            .header("Content-Type", "application/json")
            .POST(HttpRequest.BodyPublishers.ofString("{\"kind\":\"WebPage\"}"))
            .build();
    HttpResponse<String> answer = HttpClient.newHttpClient().send(delivery, HttpResponse.BodyHandlers.ofString());
    if (answer.statusCode() != 200 || answer.headers().firstValue("Reschedule-After").isEmpty()) {
      throw new IllegalStateException("the delivery is answered with " + answer.statusCode() + " " + answer.body());
    }
  }

  private static SSLContext certificate(Path file) throws Exception {
    KeyStore store = KeyStore.getInstance("PKCS12");
    try (InputStream in = Files.newInputStream(file)) {
      store.load(in, PASSWORD);
    }
    KeyManagerFactory keys = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
    keys.init(store, PASSWORD);
    SSLContext context = SSLContext.getInstance("TLS");
    context.init(keys.getKeyManagers(), null, null);
    return context;
  }

  private static String token(RsaJsonWebKey key) throws Exception {
    JwtClaims claims = new JwtClaims();
    claims.setIssuer("https://training");
    claims.setAudience("webpages");
    claims.setSubject(SENDER);
    claims.setExpirationTimeMinutesInTheFuture(10);
    JsonWebSignature token = new JsonWebSignature();
    token.setPayload(claims.toJson());
    token.setKey(key.getPrivateKey());
    token.setKeyIdHeaderValue(key.getKeyId());
    token.setAlgorithmHeaderValue(AlgorithmIdentifiers.RSA_USING_SHA256);
    return token.getCompactSerialization();
  }

  /** Has the keys and one page. Every object is taken, and listed from then on. */
  private static void answer(HttpExchange x, KubernetesClient client, RsaJsonWebKey key) throws IOException {
    String path = x.getRequestURI().getPath();
    String body;
    if (path.endsWith("/openid-configuration")) {
      body = "{\"issuer\":\"https://training\"}";
    } else if (path.endsWith("/jwks")) {
      body = "{\"keys\":[" + key.toJson() + "]}";
    } else if (path.contains("/webpages/page")) { // its status too
      body =
          """
          {"apiVersion":"examples.reschedule.dev/v1","kind":"WebPage",
           "metadata":{"name":"page","namespace":"default","uid":"1","resourceVersion":"1","generation":1},
           "spec":{"html":"<html></html>","replicas":1}}
          """;
    } else if (x.getRequestMethod().equals("GET")) {
      body = "{\"metadata\":{\"resourceVersion\":\"3\"},\"items\":[" + applied.getOrDefault(path, "") + "]}";
    } else {
      Map<String, Object> o =
          client.getKubernetesSerialization()
              .unmarshal(new ByteArrayInputStream(x.getRequestBody().readAllBytes()), Map.class);
      @SuppressWarnings("unchecked")
      Map<String, Object> metadata = (Map<String, Object>) o.get("metadata");
      metadata.put("uid", "2");
      metadata.put("resourceVersion", "2");
      metadata.put("managedFields", List.of(Map.of("manager", "webpages", "operation", "Apply", "fieldsType", "FieldsV1",
          "fieldsV1", Map.of("f:spec", Map.of("f:replicas", Map.of())))));
      body = client.getKubernetesSerialization().asJson(o);
      applied.put(x.getRequestMethod().equals("POST") ? path : path.substring(0, path.lastIndexOf('/')), body);
    }
    byte[] bytes = body.getBytes(StandardCharsets.UTF_8);
    x.getResponseHeaders().set("Content-Type", "application/json");
    x.sendResponseHeaders(200, bytes.length);
    x.getResponseBody().write(bytes);
    x.close();
  }
}
