package io.javaoperatorsdk.operator.processing.event;

import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.Map;

import org.junit.jupiter.api.Test;

import io.fabric8.kubernetes.api.model.GenericKubernetesResource;
import io.fabric8.kubernetes.api.model.ObjectMetaBuilder;
import io.fabric8.kubernetes.client.utils.KubernetesSerialization;

/** What an own write hides. */
class OvertakenTest {

  private final Overtaken compare = new Overtaken(new KubernetesSerialization(), true);
  private final GenericKubernetesResource before = object(1L, Map.of("a", 1, "b", 1));

  private static GenericKubernetesResource object(Long generation, Map<String, Object> spec) {
    GenericKubernetesResource o = new GenericKubernetesResource();
    o.setApiVersion("sample.reschedule.dev/v1");
    o.setKind("Site");
    o.setMetadata(new ObjectMetaBuilder().withName("a").withGeneration(generation).build());
    if (spec != null) {
      o.setAdditionalProperty("spec", spec);
    }
    return o;
  }

  private static GenericKubernetesResource with(GenericKubernetesResource o, String label) {
    o.getMetadata().setLabels(Map.of("label", label));
    return o;
  }

  /** A status changes no generation, so another hand has. */
  @Test
  void aStatusIsNoSpec() {
    assertFalse(compare.is(before, null, object(1L, Map.of("a", 1, "b", 1))));
    assertTrue(compare.is(before, null, object(2L, Map.of("a", 2, "b", 1))));
  }

  /** An own change of the spec is one generation. */
  @Test
  void anOwnSpecIsOneGeneration() {
    GenericKubernetesResource sent = object(1L, Map.of("a", 2, "b", 1));
    assertFalse(compare.is(before, sent, object(2L, Map.of("a", 2, "b", 1))));
    assertTrue(compare.is(before, sent, object(3L, Map.of("a", 2, "b", 3))));
  }

  /** An own write that leaves the spec as it was, whole, in part or not at all, explains no generation. */
  @Test
  void anOwnLabelIsNoSpec() {
    for (Map<String, Object> spec : java.util.Arrays.<Map<String, Object>>asList(Map.of("a", 1, "b", 1), Map.of("a", 1), null)) {
      GenericKubernetesResource sent = with(object(null, spec), "mine");
      assertFalse(compare.is(before, sent, with(object(1L, Map.of("a", 1, "b", 1)), "mine")));
      assertTrue(compare.is(before, sent, with(object(2L, Map.of("a", 2, "b", 1)), "mine")));
    }
  }

  /** A deletion is never the run's own. */
  @Test
  void aDeletionIsAnothers() {
    GenericKubernetesResource marked = object(1L, Map.of("a", 1, "b", 1));
    marked.getMetadata().setDeletionTimestamp("2026-01-01T00:00:00Z");
    assertTrue(compare.is(before, before, marked));
    assertFalse(compare.is(marked, null, marked));
  }

  /** Labels count for a controller that looks at more than the generation. */
  @Test
  void labelsCountWithoutTheGenerationFilter() {
    GenericKubernetesResource labelled = with(object(1L, Map.of("a", 1, "b", 1)), "another's");
    assertFalse(compare.is(before, null, labelled));
    assertTrue(new Overtaken(new KubernetesSerialization(), false).is(before, null, labelled));
  }

  /** Kinds without a generation are compared by their content. */
  @Test
  void contentCountsWithoutAGeneration() {
    GenericKubernetesResource was = object(null, Map.of("a", 1));
    assertFalse(compare.is(was, null, object(null, Map.of("a", 1))));
    assertTrue(compare.is(was, null, object(null, Map.of("a", 2))));
  }
}
