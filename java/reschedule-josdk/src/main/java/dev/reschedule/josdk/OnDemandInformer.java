package dev.reschedule.josdk;

import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.function.Consumer;
import java.util.function.Function;
import java.util.stream.Stream;

import io.fabric8.kubernetes.api.model.HasMetadata;
import io.fabric8.kubernetes.client.informers.ExceptionHandler;
import io.fabric8.kubernetes.client.informers.ResourceEventHandler;
import io.fabric8.kubernetes.client.informers.SharedIndexInformer;
import io.fabric8.kubernetes.client.informers.cache.Cache;
import io.fabric8.kubernetes.client.informers.cache.Indexer;
import io.fabric8.kubernetes.client.informers.cache.ItemStore;
import io.fabric8.kubernetes.client.informers.cache.Store;
import io.fabric8.kubernetes.client.informers.impl.cache.CacheImpl;

/**
 * An informer without a watch. It is given one object ({@link #put}, {@link #gone}), or lists all of them ({@link
 * #refresh}). Handlers get the differences, in the thread of the caller.
 */
final class OnDemandInformer<T extends HasMetadata> implements SharedIndexInformer<T> {

  /** Lists all objects: each goes to the consumer, and the version of the list is returned, which may be null. */
  interface Lister<T> {
    String list(Consumer<T> each);
  }

  /** The key of whatever is read. */
  static final String ANY = "";

  private final Class<T> type;
  private final Lister<T> lister; // null: objects come one by one
  private final boolean lazy;
  private final Consumer<String> onRead;
  private final CacheImpl<T> cache;
  private final List<ResourceEventHandler<? super T>> handlers = new CopyOnWriteArrayList<>();
  private final CompletableFuture<Void> stopped = new CompletableFuture<>();
  private volatile boolean running;
  // Objects that come one by one are compared with nothing. So JOSDK's own writes stay in its cache of recent writes
  // until the object comes in that version or a later one.
  private volatile String lastSync = "1";
  private final Object turn = new Object();
  private long begun; // the calls that the last list is for
  private long listed; // the calls that a list which succeeded is for
  private Throwable failure; // of the last list that failed
  private long wanted;

  /** Makes the informer of objects that are listed. */
  OnDemandInformer(Class<T> type, Lister<T> lister, boolean lazy) {
    this(type, lister, lazy, key -> {});
  }

  /** Makes the informer of objects that come one by one; the consumer gets the key of each that is read, before it is. */
  OnDemandInformer(Class<T> type, Consumer<String> onRead) {
    this(type, null, true, onRead);
  }

  private OnDemandInformer(Class<T> type, Lister<T> lister, boolean lazy, Consumer<String> onRead) {
    this.type = type;
    this.lister = lister;
    this.lazy = lazy;
    this.onRead = onRead;
    this.cache =
        new CacheImpl<>(Cache.NAMESPACE_INDEX, Cache::metaNamespaceIndexFunc, Cache::metaNamespaceKeyFunc) {
          @Override
          public T getByKey(String key) {
            if (!Thread.holdsLock(OnDemandInformer.this)) { // not while it changes
              onRead.accept(key);
            }
            return super.getByKey(key);
          }

          // Fabric8 takes an object out of its indexes and puts it back when it is put, changed or not, and reads them
          // without the lock. Each list puts all objects, so that a run beside it would miss what exists.
          @Override
          public synchronized List<T> byIndex(String name, String value) {
            return super.byIndex(name, value);
          }

          @Override
          public synchronized List<T> index(String name, T object) {
            return super.index(name, object);
          }

          @Override
          public synchronized List<String> indexKeys(String name, String value) {
            return super.indexKeys(name, value);
          }
        };
  }

  @Override
  public CompletionStage<Void> start() {
    running = true;
    if (lister != null && !lazy) {
      fill(); // a run has registered it, and is going to read from it
    }
    return CompletableFuture.completedFuture(null);
  }

  synchronized T known(String key) {
    return cache.getByKey(key);
  }

  synchronized void put(T object) {
    T old = cache.put(object);
    if (old == null) {
      handlers.forEach(h -> h.onAdd(object));
    } else if (!Objects.equals(
        old.getMetadata().getResourceVersion(), object.getMetadata().getResourceVersion())) {
      handlers.forEach(h -> h.onUpdate(old, object));
    }
  }

  synchronized void gone(T last, boolean unknownState) {
    cache.remove(last);
    handlers.forEach(h -> h.onDelete(last, unknownState));
  }

  /**
   * Lists for the first time, without handlers: they need the lock of their event source, which JOSDK holds until its
   * informers have started. JOSDK indexes what is in the cache then.
   */
  private synchronized void fill() {
    String version = lister.list(cache::put);
    if (version != null && !version.isEmpty()) {
      lastSync = version;
    }
  }

  /** Lists. It returns when a list that was begun after the call is in the cache, and fails if that list has failed. */
  void refresh() {
    if (lister == null || !running) {
      return;
    }
    long mine;
    synchronized (turn) {
      mine = ++wanted;
    }
    synchronized (this) { // one list at a time; all calls that wait here share the next one, and its failure
      if (listed >= mine) {
        return;
      }
      synchronized (turn) {
        if (begun >= mine) {
          throw new IllegalStateException("the list of " + type.getSimpleName() + " that was shared has failed", failure);
        }
        begun = wanted;
      }
      try {
        list();
        listed = begun;
      } catch (RuntimeException | Error e) {
        failure = e;
        throw e;
      }
    }
  }

  private void list() {
    Set<String> keys = new HashSet<>();
    String version =
        lister.list(
            item -> {
              keys.add(cache.getKey(item));
              put(item);
            });
    for (T old : cache.list()) {
      if (!keys.contains(cache.getKey(old))) {
        gone(old, false);
      }
    }
    if (version != null && !version.isEmpty()) {
      lastSync = version;
    }
  }

  @Override
  public SharedIndexInformer<T> addIndexers(Map<String, Function<T, List<String>>> indexers) {
    cache.addIndexers(indexers);
    return this;
  }

  @Override
  public SharedIndexInformer<T> removeIndexer(String name) {
    cache.removeIndexer(name);
    return this;
  }

  @Override
  public Indexer<T> getIndexer() {
    return cache;
  }

  @Override
  public Store<T> getStore() {
    return cache;
  }

  @Override
  public SharedIndexInformer<T> addEventHandler(ResourceEventHandler<? super T> handler) {
    handlers.add(handler);
    return this;
  }

  @Override
  public SharedIndexInformer<T> removeEventHandler(ResourceEventHandler<? super T> handler) {
    handlers.remove(handler);
    return this;
  }

  @Override
  public SharedIndexInformer<T> addEventHandlerWithResyncPeriod(
      ResourceEventHandler<? super T> handler, long period) {
    return addEventHandler(handler);
  }

  @Override
  public SharedIndexInformer<T> run() {
    start();
    return this;
  }

  @Override
  public void stop() {
    running = false;
    stopped.complete(null);
  }

  @Override
  public boolean hasSynced() {
    return running;
  }

  /** JOSDK asks for it before it returns an own write instead of what is here. */
  @Override
  public String lastSyncResourceVersion() {
    onRead.accept(ANY);
    return lastSync;
  }

  @Override
  public boolean isRunning() {
    return running;
  }

  @Override
  public Class<T> getApiTypeClass() {
    return type;
  }

  @Override
  public boolean isWatching() {
    return running;
  }

  @Override
  public SharedIndexInformer<T> initialState(Stream<T> items) {
    items.forEach(cache::put);
    return this;
  }

  @Override
  public SharedIndexInformer<T> itemStore(ItemStore<T> store) {
    cache.setItemStore(store);
    return this;
  }

  @Override
  public SharedIndexInformer<T> exceptionHandler(ExceptionHandler handler) {
    return this;
  }

  @Override
  public CompletionStage<Void> stopped() {
    return stopped;
  }
}
