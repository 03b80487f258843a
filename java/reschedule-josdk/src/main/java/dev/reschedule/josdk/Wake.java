package dev.reschedule.josdk;

import java.time.DateTimeException;
import java.time.Instant;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

import io.fabric8.kubernetes.client.utils.KubernetesSerialization;

import dev.reschedule.client.Delivery;

/**
 * The part of a delivery that controllers look at. A change of an object is either an event of an ApiServerSource, in
 * Reference or Resource mode (spec.watch sends Reference), or names its cause. Everything else is a timer.
 *
 * @param kind the kind that changed; empty for a timer
 * @param deleted the data is the last state of the object
 * @param attempt how often the delivery has failed before
 * @param data the data, if it is a JSON object, else empty
 * @param dues the controllers that a timer is for; empty if it does not say
 */
record Wake(String kind, boolean deleted, int attempt, Map<String, Object> data, Map<String, Due> dues) {

  /** The type of the event of a timer. */
  static final String DUE = "dev.reschedule.due";

  private static final String API_SERVER = "dev.knative.apiserver.";

  /**
   * A controller's part of a timer.
   *
   * @param at when it is due
   * @param retry how many retries there have been
   */
  record Due(Instant at, int retry) {}

  static Wake read(Delivery d, KubernetesSerialization json) {
    String type = d.event().attribute("type");
    String kind = "";
    if (type.startsWith(API_SERVER)) {
      kind = d.event().attribute("kind");
    } else if (type.equals(DUE) && !d.event().attribute("reschedulecause").isEmpty()) {
      // apps/v1/Deployment/ops/web, and v1/ConfigMap/ops/web
      String[] cause = d.event().attribute("reschedulecause").split("/", -1);
      kind = cause.length >= 4 ? cause[cause.length - 3] : "";
    }
    Map<String, Object> data = object(d, json);
    boolean timer = kind.isEmpty() && type.equals(DUE);
    boolean deleted = type.equals(API_SERVER + "resource.delete");
    return new Wake(kind, deleted, d.attempt(), data, timer ? dues(data) : Map.of());
  }

  @SuppressWarnings("unchecked") // JSON objects have strings as keys
  private static Map<String, Object> object(Delivery d, KubernetesSerialization json) {
    byte[] data = d.event().data();
    if (data == null || data.length == 0 || data[0] != '{') {
      return Map.of(); // not ours, and the serialization would read it as YAML, with aliases and without a bound of depth
    }
    try {
      Object read = json.unmarshal(new java.io.ByteArrayInputStream(data), Object.class);
      return read instanceof Map<?, ?> m ? (Map<String, Object>) m : Map.of();
    } catch (RuntimeException e) {
      return Map.of(); // data of another kind: the key alone says what is due
    }
  }

  private static Map<String, Due> dues(Map<String, Object> data) {
    Map<String, Due> dues = new HashMap<>();
    if (data.get("controllers") instanceof List<?> all) {
      for (Object one : all) {
        if (one instanceof Map<?, ?> c
            && c.get("name") instanceof String name
            && c.get("at") instanceof String at
            && c.get("retry") instanceof Number retry) {
          try {
            dues.put(name, new Due(Instant.parse(at), retry.intValue()));
          } catch (DateTimeException e) {
            return Map.of(); // not ours
          }
        }
      }
    }
    return dues;
  }

  boolean repeated() {
    return attempt > 0;
  }

  /** A change runs what filters let pass. A timer, a failed delivery and an event of another kind always run. */
  boolean isChangeOf(String primary, java.util.function.Predicate<String> secondary) {
    return !repeated() && !kind.isEmpty() && (kind.equals(primary) || secondary.test(kind));
  }
}
