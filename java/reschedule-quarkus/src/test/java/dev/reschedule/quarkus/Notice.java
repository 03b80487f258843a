package dev.reschedule.quarkus;

import io.fabric8.kubernetes.api.model.Namespaced;
import io.fabric8.kubernetes.client.CustomResource;
import io.fabric8.kubernetes.model.annotation.Group;
import io.fabric8.kubernetes.model.annotation.Version;

/** A kind of the tests. */
@Group("quarkus.reschedule.dev")
@Version("v1")
public class Notice extends CustomResource<Notice.Spec, Void> implements Namespaced {
  public static class Spec {
    public String text;
  }
}
