package dev.reschedule.examples.webpage;

import io.fabric8.kubernetes.api.model.Namespaced;
import io.fabric8.kubernetes.client.CustomResource;
import io.fabric8.kubernetes.model.annotation.Group;
import io.fabric8.kubernetes.model.annotation.Version;

/** A page that is served in its namespace. */
@Group("examples.reschedule.dev")
@Version("v1")
public class WebPage extends CustomResource<WebPage.Spec, WebPage.Status> implements Namespaced {

  public static class Spec {
    private String html;
    private int replicas = 1;

    public String getHtml() {
      return html;
    }

    public void setHtml(String html) {
      this.html = html;
    }

    public int getReplicas() {
      return replicas;
    }

    public void setReplicas(int replicas) {
      this.replicas = replicas;
    }
  }

  public static class Status {
    private Long observedGeneration;
    private int ready;
    private String message;

    public Long getObservedGeneration() {
      return observedGeneration;
    }

    public void setObservedGeneration(Long observedGeneration) {
      this.observedGeneration = observedGeneration;
    }

    public int getReady() {
      return ready;
    }

    public void setReady(int ready) {
      this.ready = ready;
    }

    public String getMessage() {
      return message;
    }

    public void setMessage(String message) {
      this.message = message;
    }
  }
}
