package dev.reschedule.josdk;

import io.fabric8.kubernetes.api.model.Namespaced;
import io.fabric8.kubernetes.client.CustomResource;
import io.fabric8.kubernetes.model.annotation.Group;
import io.fabric8.kubernetes.model.annotation.Version;

/** A kind of the tests. Its mode says what its reconciler does. */
@Group("sample.reschedule.dev")
@Version("v1")
public class Site extends CustomResource<Site.Spec, Site.Status> implements Namespaced {
  public static class Spec {
    public String mode = "plain";
    public String content = "";
  }

  public static class Status {
    public int count;
    public String message;
  }
}
