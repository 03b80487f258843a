package io.javaoperatorsdk.operator.processing.event;

import java.util.Map;
import java.util.Objects;

import io.fabric8.kubernetes.api.model.HasMetadata;
import io.fabric8.kubernetes.api.model.ObjectMeta;
import io.fabric8.kubernetes.client.utils.KubernetesSerialization;

/**
 * Finds out whether what a run has written contains a change of another hand. In doubt it says yes: a run too many rather
 * than one too few.
 */
record Overtaken(KubernetesSerialization json, boolean generationAware) {

  /**
   * Compares the object that a run began with, and what the API server answered to its last write.
   *
   * @param sent what the run wrote; null if it was only the status, or is not known
   */
  boolean is(HasMetadata before, HasMetadata sent, HasMetadata result) {
    ObjectMeta was = before.getMetadata();
    ObjectMeta is = result.getMetadata();
    if (was.getDeletionTimestamp() == null && is.getDeletionTimestamp() != null) {
      return true;
    }
    long changes =
        was.getGeneration() == null || is.getGeneration() == null
            ? body(before).equals(body(result)) ? 0 : 1
            : is.getGeneration() - was.getGeneration();
    long own = sent == null || within(body(sent), body(before)) ? 0 : 1;
    return changes > own
        || !generationAware && sent == null
            && !(Objects.equals(was.getLabels(), is.getLabels()) && Objects.equals(was.getAnnotations(), is.getAnnotations()));
  }

  /** What a generation counts the changes of. */
  private Map<?, ?> body(HasMetadata o) {
    Map<?, ?> all = json.convertValue(o, Map.class);
    all.keySet().removeIf(k -> k.equals("metadata") || k.equals("status"));
    return all;
  }

  /** With server-side apply a part of an object is sent. */
  private static boolean within(Object part, Object whole) {
    return part instanceof Map<?, ?> p && whole instanceof Map<?, ?> w
        ? p.entrySet().stream().allMatch(e -> within(e.getValue(), w.get(e.getKey())))
        : part == null || part.equals(whole);
  }
}
