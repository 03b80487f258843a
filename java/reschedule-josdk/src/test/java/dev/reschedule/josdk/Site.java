package dev.reschedule.josdk;

import io.fabric8.kubernetes.api.model.Namespaced;
import io.fabric8.kubernetes.api.model.ObjectMetaBuilder;
import io.fabric8.kubernetes.client.CustomResource;
import io.fabric8.kubernetes.model.annotation.Group;
import io.fabric8.kubernetes.model.annotation.Version;

/** A kind of the tests. Its mode says what its reconciler does. */
@Group("sample.reschedule.dev")
@Version("v1")
public class Site extends CustomResource<Site.Spec, Site.Status> implements Namespaced {
  static Site of(String namespace, String name, String mode) {
    Site s = new Site();
    s.setMetadata(new ObjectMetaBuilder().withName(name).withNamespace(namespace).build());
    s.setSpec(new Spec());
    s.getSpec().mode = mode;
    return s;
  }

  public static class Spec {
    public String mode = "plain";
    public String content = "";
  }

  public static class Status {
    public int count;
    public String message;
  }
}
