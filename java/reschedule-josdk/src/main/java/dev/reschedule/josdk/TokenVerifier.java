package dev.reschedule.josdk;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.function.Predicate;
import java.util.function.Supplier;
import java.util.regex.Pattern;

import org.jose4j.jwa.AlgorithmConstraints;
import org.jose4j.jwa.AlgorithmConstraints.ConstraintType;
import org.jose4j.jwk.JsonWebKey;
import org.jose4j.jwk.JsonWebKeySet;
import org.jose4j.jws.AlgorithmIdentifiers;
import org.jose4j.jws.JsonWebSignature;
import org.jose4j.jwt.JwtClaims;
import org.jose4j.jwt.MalformedClaimException;
import org.jose4j.jwt.NumericDate;
import org.jose4j.jwt.consumer.InvalidJwtException;
import org.jose4j.jwt.consumer.JwtConsumer;
import org.jose4j.jwt.consumer.JwtConsumerBuilder;
import org.jose4j.jwt.consumer.JwtContext;
import org.jose4j.lang.JoseException;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import io.fabric8.kubernetes.client.KubernetesClient;

import dev.reschedule.client.Answer;

/**
 * Admits deliveries with a token of the cluster's API server, for the audience, and of an account that is allowed. It
 * reads the API server's keys only, which every service account may do.
 */
final class TokenVerifier {

  private static final Logger log = LoggerFactory.getLogger(TokenVerifier.class);

  /** The time after which the keys are fetched again, so that a withdrawn key goes out of use. */
  private static final long KEYS_LIFE_MILLIS = 3_600_000;

  /** The least time between two fetches, whatever tokens come: each fetch is two requests to the API server. */
  private static final long FETCH_EVERY_MILLIS = 5_000;

  /** How far the clocks of the API server and of this process may differ. */
  private static final int LEEWAY_SECONDS = 60;

  private static final int MAX_TOKEN = 16 << 10;

  private static final Path OWN_NAMESPACE = Path.of("/var/run/secrets/kubernetes.io/serviceaccount/namespace");

  /** The account of a RescheduleSource. Knative cuts a long name, and puts a digest into it. */
  private static final Pattern IDENTITY =
      Pattern.compile("[-.a-z0-9]{1,18}-oidc-sources\\.reschedule\\.dev-reschedulesource"
          + "|[-.a-z0-9]{19,31}[0-9a-f]{32}[-a-z]{0,12}");

  private static final AlgorithmConstraints SIGNATURES =
      new AlgorithmConstraints(
          ConstraintType.PERMIT,
          AlgorithmIdentifiers.RSA_USING_SHA256, AlgorithmIdentifiers.RSA_USING_SHA384,
          AlgorithmIdentifiers.RSA_USING_SHA512, AlgorithmIdentifiers.RSA_PSS_USING_SHA256,
          AlgorithmIdentifiers.RSA_PSS_USING_SHA384, AlgorithmIdentifiers.RSA_PSS_USING_SHA512,
          AlgorithmIdentifiers.ECDSA_USING_P256_CURVE_AND_SHA256, AlgorithmIdentifiers.ECDSA_USING_P384_CURVE_AND_SHA384,
          AlgorithmIdentifiers.ECDSA_USING_P521_CURVE_AND_SHA512, AlgorithmIdentifiers.EDDSA);

  /**
   * The issuer of tokens and its keys.
   *
   * @param at when the fetch began
   */
  record Keys(String issuer, List<JsonWebKey> keys, long at) {

    boolean signs(String from, String id) {
      return issuer.equals(from) && key(id) != null;
    }

    JsonWebKey key(String id) {
      return keys.stream().filter(k -> id != null && id.equals(k.getKeyId())).findFirst().orElse(null);
    }
  }

  private final String audience;
  private final Predicate<String> allowed;
  private final Supplier<Keys> fetch;
  private volatile Keys current;
  private long tried; // 0: never

  TokenVerifier(String audience, Predicate<String> allowed, Supplier<Keys> fetch) {
    if (audience.isEmpty()) {
      throw new IllegalArgumentException("withAudience needs an audience: the sink.audience of the RescheduleSource");
    }
    this.audience = audience;
    this.allowed = allowed;
    this.fetch = fetch;
  }

  static TokenVerifier of(KubernetesClient client, String audience, List<String> subjects) {
    return new TokenVerifier(
        audience, subjects.isEmpty() ? sourcesOf(ownNamespace()) : subjects::contains, () -> fetch(client));
  }

  private static String ownNamespace() {
    try {
      return Files.readString(OWN_NAMESPACE).strip();
    } catch (IOException e) {
      throw new UncheckedIOException(
          "withAudience: the namespace of this process is not known: name the subjects", e);
    }
  }

  /** The identities of all RescheduleSources of a namespace. */
  static Predicate<String> sourcesOf(String namespace) {
    String prefix = "system:serviceaccount:" + namespace + ":";
    return s -> s.startsWith(prefix) && IDENTITY.matcher(s.substring(prefix.length())).matches();
  }

  private static Keys fetch(KubernetesClient client) {
    long at = System.currentTimeMillis();
    Object about = client.getKubernetesSerialization().unmarshal(client.raw("/.well-known/openid-configuration"), Map.class);
    String keys = client.raw("/openid/v1/jwks");
    try {
      if (about instanceof Map<?, ?> m && m.get("issuer") instanceof String issuer && !issuer.isEmpty() && keys != null) {
        return new Keys(issuer, new JsonWebKeySet(keys).getJsonWebKeys(), at);
      }
    } catch (JoseException e) {
      throw new IllegalStateException("the API server's keys cannot be read", e);
    }
    throw new IllegalStateException("the API server names no issuer of tokens, or has no keys");
  }

  /** Returns null for a delivery that is admitted, else the answer. */
  Answer refusal(List<String> authorization) {
    if (authorization == null || authorization.size() != 1 || authorization.get(0).length() > MAX_TOKEN) {
      return unauthenticated("there is none");
    }
    String[] parts = authorization.get(0).strip().split(" +", 2);
    if (parts.length != 2 || !parts[0].equalsIgnoreCase("Bearer")) {
      return unauthenticated("there is none");
    }
    try {
      return check(parts[1].strip());
    } catch (InvalidJwtException | MalformedClaimException | JoseException e) {
      log.debug("A token is refused", e);
      return unauthenticated("it is forged, expired, or for another audience than " + audience);
    }
  }

  private Answer check(String token) throws InvalidJwtException, MalformedClaimException, JoseException {
    // A token for another audience costs no keys. None of its claims is believed before its signature is checked.
    JwtContext unverified =
        new JwtConsumerBuilder().setSkipSignatureVerification().setDisableRequireSignature()
            .setExpectedAudience(audience).setRequireExpirationTime().setAllowedClockSkewInSeconds(LEEWAY_SECONDS)
            .setEvaluationTime(NumericDate.now()).build().process(token);
    JwtClaims claims = unverified.getJwtClaims();
    if (unverified.getJoseObjects().size() != 1
        || !(unverified.getJoseObjects().get(0) instanceof JsonWebSignature signature)) {
      return unauthenticated("it is not a signed JWT");
    }
    String id = signature.getKeyIdHeaderValue();
    long came = System.currentTimeMillis();
    Keys keys = keys(claims.getIssuer(), id, came);
    if (keys == null || !keys.signs(claims.getIssuer(), id)) {
      // That there is no such key is certain only when the keys were fetched after the token came.
      return keys == null || keys.at() < came
          ? Answer.retry("the token cannot be checked now").with("Retry-After", "5")
          : unauthenticated("its key is not from this cluster");
    }
    JwtConsumer verified =
        new JwtConsumerBuilder().setVerificationKey(keys.key(id).getKey()).setJwsAlgorithmConstraints(SIGNATURES)
            .setRelaxVerificationKeyValidation() // the API server chooses its keys
            .setExpectedAudience(audience).setExpectedIssuer(keys.issuer()).setRequireExpirationTime()
            .setAllowedClockSkewInSeconds(LEEWAY_SECONDS).build();
    String subject = verified.processToClaims(token).getSubject();
    if (subject == null || !allowed.test(subject)) {
      log.warn("A delivery of another account is refused: withAudience names the accounts: {}", subject);
      return Answer.text(403, "the account in the token may not send events to this operator: " + subject);
    }
    return null;
  }

  private Keys keys(String issuer, String id, long came) {
    Keys have = current;
    if (fresh(have, issuer, id, came)) {
      return have;
    }
    synchronized (this) {
      have = current;
      long now = System.currentTimeMillis();
      if (!fresh(have, issuer, id, now) && (tried == 0 || now - tried >= FETCH_EVERY_MILLIS)) {
        tried = now;
        try {
          have = fetch.get();
          current = have;
        } catch (RuntimeException e) {
          log.error("The keys to check the tokens of deliveries cannot be read; deliveries wait", e);
        }
      }
      return have;
    }
  }

  private static boolean fresh(Keys k, String issuer, String id, long now) {
    return k != null && k.signs(issuer, id) && now - k.at() < KEYS_LIFE_MILLIS;
  }

  private static Answer unauthenticated(String why) {
    return Answer.text(401, "the delivery has no valid token: " + why).with("WWW-Authenticate", "Bearer");
  }
}
