package dev.reschedule.josdk;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Consumer;
import java.util.function.Predicate;

import org.jose4j.jwk.EcJwkGenerator;
import org.jose4j.jwk.PublicJsonWebKey;
import org.jose4j.jwk.RsaJwkGenerator;
import org.jose4j.jws.JsonWebSignature;
import org.jose4j.jwt.JwtClaims;
import org.jose4j.keys.EllipticCurves;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

import io.fabric8.kubernetes.api.model.ServiceAccountBuilder;
import io.fabric8.kubernetes.api.model.authentication.TokenRequestBuilder;

import dev.reschedule.client.Answer;

/** The tokens that are admitted, and that are not. */
@Timeout(150)
class TokenVerifierTest {

  private static final String ISSUER = "https://kubernetes.default.svc";
  private static final String ALLOWED = "system:serviceaccount:ops:websites-oidc-sources.reschedule.dev-reschedulesource";

  private final AtomicInteger fetches = new AtomicInteger();

  private static PublicJsonWebKey key(String id) throws Exception {
    PublicJsonWebKey k = RsaJwkGenerator.generateJwk(2048);
    k.setKeyId(id);
    return k;
  }

  private TokenVerifier verifier(PublicJsonWebKey... keys) {
    return new TokenVerifier(
        "websites",
        TokenVerifier.sourcesOf("ops"),
        () -> {
          fetches.incrementAndGet();
          return new TokenVerifier.Keys(ISSUER, List.of(keys), System.currentTimeMillis());
        });
  }

  private static String token(PublicJsonWebKey key, String algorithm, Consumer<JwtClaims> change) throws Exception {
    JwtClaims c = new JwtClaims();
    c.setIssuer(ISSUER);
    c.setAudience("websites");
    c.setSubject(ALLOWED);
    c.setExpirationTimeMinutesInTheFuture(10);
    change.accept(c);
    JsonWebSignature s = new JsonWebSignature();
    s.setPayload(c.toJson());
    s.setKey(key.getPrivateKey());
    s.setKeyIdHeaderValue(key.getKeyId());
    s.setAlgorithmHeaderValue(algorithm);
    return s.getCompactSerialization();
  }

  private static int status(Answer a) {
    return a == null ? 200 : a.status();
  }

  private static int status(TokenVerifier v, String token) {
    return status(v.refusal(List.of("Bearer " + token)));
  }

  /** A token of an allowed account is admitted, whatever kind of key the API server has. */
  @Test
  void ownSourcesAreAdmitted() throws Exception {
    PublicJsonWebKey rsa = key("1");
    PublicJsonWebKey ec = EcJwkGenerator.generateJwk(EllipticCurves.P256);
    ec.setKeyId("2");
    TokenVerifier v = verifier(rsa, ec);
    assertNull(v.refusal(List.of("bearer " + token(rsa, "RS256", c -> {}))));
    assertEquals(200, status(v, token(ec, "ES256", c -> {})));
    assertEquals(1, fetches.get());
  }

  /** Each way to be wrong is refused, and costs at most one fetch of the keys. */
  @Test
  void otherTokensAreRefused() throws Exception {
    PublicJsonWebKey good = key("1");
    PublicJsonWebKey forged = key("1");
    TokenVerifier v = verifier(good);
    assertEquals(401, status(v.refusal(null)));
    assertEquals(401, status(v.refusal(List.of("Bearer a", "Bearer b"))));
    assertEquals(401, status(v.refusal(List.of("Basic a"))));
    assertEquals(401, status(v, "a.b.c"));
    assertEquals(401, status(v, "x".repeat(100_000)));
    assertEquals(401, status(v, token(good, "RS256", c -> c.setAudience("another"))));
    assertEquals(401, status(v, token(good, "RS256", c -> c.setExpirationTimeMinutesInTheFuture(-10))));
    assertEquals(401, status(v, token(good, "RS256", c -> c.unsetClaim("exp"))));
    assertEquals(401, status(v, token(good, "RS256", c -> c.setNotBeforeMinutesInThePast(-10))));
    assertEquals(0, fetches.get());
    assertEquals(401, status(v, token(forged, "RS256", c -> {})));
    assertEquals(403, status(v, token(good, "RS256", c -> c.setSubject("system:serviceaccount:ops:default"))));
    assertEquals(
        403, status(v, token(good, "RS256", c -> c.setSubject(ALLOWED.replace(":ops:", ":other:")))));
    assertEquals(200, status(v, token(good, "RS256", c -> {})));
    assertEquals(1, fetches.get());
  }

  /** A token without a signature is refused, also one that is signed with the public key as a secret. */
  @Test
  void unsignedTokensAreRefused() throws Exception {
    PublicJsonWebKey good = key("1");
    TokenVerifier v = verifier(good);
    String[] parts = token(good, "RS256", c -> {}).split("\\.");
    String none =
        java.util.Base64.getUrlEncoder().withoutPadding().encodeToString("{\"alg\":\"none\",\"kid\":\"1\"}".getBytes());
    assertEquals(401, status(v, none + "." + parts[1] + "."));
    JsonWebSignature s = new JsonWebSignature();
    s.setPayload(new String(java.util.Base64.getUrlDecoder().decode(parts[1])));
    s.setKey(new org.jose4j.keys.HmacKey(good.getPublicKey().getEncoded()));
    s.setKeyIdHeaderValue("1");
    s.setAlgorithmHeaderValue("HS256");
    assertEquals(401, status(v, s.getCompactSerialization()));
  }

  /** A new key of the API server is found; while it cannot be read, deliveries wait. */
  @Test
  void keysThatCannotBeReadAreWaitedFor() throws Exception {
    PublicJsonWebKey k = key("1");
    TokenVerifier down =
        new TokenVerifier(
            "websites",
            s -> true,
            () -> {
              throw new IllegalStateException("the API server is away");
            });
    Answer a = down.refusal(List.of("Bearer " + token(k, "RS256", c -> {})));
    assertEquals(503, a.status());
    assertEquals("5", a.headers().get("Retry-After"));
    TokenVerifier v = verifier(k);
    assertEquals(200, status(v, token(k, "RS256", c -> {})));
    // Its key may be newer than the last fetch, which was a moment ago: not certain yet.
    assertEquals(503, status(v, token(key("2"), "RS256", c -> {})));
    assertEquals(1, fetches.get());
  }

  /** The accounts of the sources of the own namespace are known by their names. */
  @Test
  void accountsOfSourcesAreKnown() {
    Predicate<String> ops = TokenVerifier.sourcesOf("ops");
    assertTrue(ops.test(ALLOWED));
    assertTrue(ops.test("system:serviceaccount:ops:a-very-long-name-oidc0123456789abcdef0123456789abcdef"));
    assertFalse(ops.test("system:serviceaccount:ops:default"));
    assertFalse(ops.test("system:serviceaccount:ops2:websites-oidc-sources.reschedule.dev-reschedulesource"));
    assertFalse(ops.test("x" + ALLOWED));
    assertThrows(IllegalArgumentException.class, () -> new TokenVerifier("", s -> true, () -> null));
  }

  /** A real API server's token is checked with its keys. */
  @Test
  void tokensOfAnApiServerAreChecked() throws Exception {
    var client = Kube.get().client();
    String ns = Kube.get().namespace("tokens");
    client.resource(new ServiceAccountBuilder().withNewMetadata().withName("sender").withNamespace(ns).endMetadata().build())
        .create();
    TokenVerifier v = TokenVerifier.of(client, "websites", List.of("system:serviceaccount:tokens:sender"));
    for (String audience : List.of("websites", "another")) {
      String token =
          client.serviceAccounts().inNamespace(ns).withName("sender")
              .tokenRequest(
                  new TokenRequestBuilder().withNewSpec().withAudiences(audience).withExpirationSeconds(600L).endSpec().build())
              .getStatus().getToken();
      assertEquals(audience.equals("websites") ? 200 : 401, status(v, token));
      if (audience.equals("websites")) {
        assertEquals(401, status(v, token.substring(0, token.length() - 6) + "AAAAAA"));
      }
    }
  }
}
