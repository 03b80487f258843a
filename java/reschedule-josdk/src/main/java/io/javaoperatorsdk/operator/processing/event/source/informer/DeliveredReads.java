package io.javaoperatorsdk.operator.processing.event.source.informer;

import java.util.Optional;

import io.fabric8.kubernetes.api.model.HasMetadata;
import io.javaoperatorsdk.operator.processing.event.ResourceID;

/** Looks into the cache of recent writes of an event source. It is in this package for that. */
public final class DeliveredReads {

  private DeliveredReads() {}

  /** Reports whether JOSDK itself reads in this thread, to compare what has just been written. */
  public static boolean areJosdks(ManagedInformerEventSource<?, ?, ?> source) {
    return Thread.holdsLock(source.temporaryResourceCache);
  }

  /** Returns what a run has written, if its informer has not had it yet. */
  public static <R extends HasMetadata> Optional<R> written(ManagedInformerEventSource<R, ?, ?> source, ResourceID id) {
    return source.temporaryResourceCache.getResourceFromCache(id);
  }
}
