package dev.reschedule.josdk;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.TreeMap;
import java.util.UUID;
import java.util.function.Function;

import io.fabric8.kubernetes.api.model.HasMetadata;
import io.fabric8.kubernetes.api.model.ObjectMeta;
import io.fabric8.kubernetes.client.dsl.Informable;
import io.fabric8.kubernetes.client.informers.ResourceEventHandler;

import dev.reschedule.client.CloudEvent;
import dev.reschedule.client.Schedules;

/** Sends what spec.watch sends, to an adapter that has no cluster: references and causes, never objects. */
final class Watch implements AutoCloseable {

  private final Schedules source;
  private final boolean metadata;
  private final List<AutoCloseable> informers = new ArrayList<>();

  /** With metadata, what counts of primary objects is as with changes: Metadata, else as with changes: Spec. */
  Watch(Schedules source, boolean metadata) {
    this.source = source;
    this.metadata = metadata;
  }

  /** Watches the kind that keys are about: what counts is the spec, or the metadata. */
  <T extends HasMetadata> void primary(Informable<T> of) {
    informers.add(of.inform(new Handler<>(o -> key(o.getKind(), o), true))::close);
  }

  /** Watches a kind that belongs to keys: every change counts. */
  <T extends HasMetadata> void secondary(Informable<T> of, Function<T, String> key) {
    informers.add(of.inform(new Handler<>(key, false))::close);
  }

  static String key(String kind, HasMetadata o) {
    String namespace = o.getMetadata().getNamespace();
    return kind + "/" + (namespace == null ? "" : namespace) + "/" + o.getMetadata().getName();
  }

  private final class Handler<T extends HasMetadata> implements ResourceEventHandler<T> {
    private final Function<T, String> key;
    private final boolean isPrimary;

    Handler(Function<T, String> key, boolean isPrimary) {
      this.key = key;
      this.isPrimary = isPrimary;
    }

    @Override
    public void onAdd(T o) {
      send(o, "add");
    }

    @Override
    public void onUpdate(T old, T o) {
      if (!isPrimary || !Objects.equals(counts(old), counts(o))) {
        send(o, "update");
      }
    }

    @Override
    public void onDelete(T o, boolean unknown) {
      send(o, "delete");
    }

    private List<Object> counts(T o) {
      ObjectMeta m = o.getMetadata();
      List<Object> spec = java.util.Arrays.asList(m.getUid(), m.getGeneration(), m.getDeletionTimestamp());
      return metadata
          ? java.util.Arrays.asList(spec, m.getFinalizers(), m.getLabels(), m.getAnnotations(), m.getOwnerReferences())
          : spec;
    }

    private void send(T o, String verb) {
      String key = this.key.apply(o);
      if (key.isEmpty()) {
        return;
      }
      Map<String, String> a = new TreeMap<>();
      a.put("specversion", "1.0");
      a.put("id", UUID.randomUUID().toString());
      a.put("source", "/apis/sources.reschedule.dev/v1alpha1/namespaces/ops/reschedulesources/test");
      a.put("reschedulekey", key);
      byte[] data = null;
      ObjectMeta m = o.getMetadata();
      String namespace = m.getNamespace() == null ? "" : m.getNamespace();
      if (isPrimary) {
        a.put("type", "dev.knative.apiserver.ref." + verb);
        a.put("kind", o.getKind());
        a.put("apiversion", o.getApiVersion());
        a.put("name", m.getName());
        if (!namespace.isEmpty()) {
          a.put("namespace", namespace);
        }
        a.put("datacontenttype", "application/json");
        data = ("{\"kind\":\"" + o.getKind() + "\",\"namespace\":\"" + namespace + "\",\"name\":\"" + m.getName()
            + "\",\"uid\":\"" + m.getUid() + "\"}").getBytes(java.nio.charset.StandardCharsets.UTF_8);
      } else {
        a.put("type", "dev.reschedule.due");
        a.put("reschedulecause", o.getApiVersion() + "/" + o.getKind() + "/" + namespace + "/" + m.getName());
      }
      source.send(new CloudEvent(a, data));
    }
  }

  @Override
  public void close() throws Exception {
    for (AutoCloseable i : informers) {
      i.close();
    }
  }
}
