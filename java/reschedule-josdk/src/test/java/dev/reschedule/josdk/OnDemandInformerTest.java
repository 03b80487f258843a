package dev.reschedule.josdk;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Function;

import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

import io.fabric8.kubernetes.api.model.ConfigMap;
import io.fabric8.kubernetes.api.model.ConfigMapBuilder;
import io.fabric8.kubernetes.client.informers.cache.Indexer;

/** What runs read while a list of another delivery comes in. */
@Timeout(60)
class OnDemandInformerTest {

  private final AtomicReference<ConfigMap> served = new AtomicReference<>();
  private final AtomicReference<Runnable> between = new AtomicReference<>(() -> {});

  private static ConfigMap object(String version) {
    return new ConfigMapBuilder().withNewMetadata().withNamespace("ns").withName("a").withResourceVersion(version)
        .endMetadata().build();
  }

  private static List<String> versions(List<ConfigMap> objects) {
    return objects.stream().map(o -> o.getMetadata().getResourceVersion()).toList();
  }

  /** A list takes no object out of an index that a run reads meanwhile, be it changed or not. */
  @Test
  void aListHidesNothingFromAnIndex() throws Exception {
    OnDemandInformer<ConfigMap> informer =
        new OnDemandInformer<>(
            ConfigMap.class,
            each -> {
              each.accept(served.get());
              return served.get().getMetadata().getResourceVersion();
            },
            true);
    informer.addIndexers(
        Map.of("site", o -> {
          between.get().run();
          return List.of("a");
        }));
    informer.start();
    served.set(object("1"));
    informer.refresh();
    assertEquals(List.of("1"), versions(informer.getIndexer().byIndex("site", "a")));

    List<Function<Indexer<ConfigMap>, List<String>>> reads =
        List.of(
            i -> versions(i.byIndex("site", "a")),
            i -> versions(i.index("site", object("1"))),
            i -> i.indexKeys("site", "a"));
    for (String version : List.of("1", "2")) {
      served.set(object(version));
      assertEquals(List.of(version), during(informer, reads.get(0)));
      assertEquals(List.of(version), during(informer, reads.get(1)));
      assertEquals(List.of("ns/a"), during(informer, reads.get(2)));
    }
  }

  /** Deliveries that share a list which fails all fail: none is answered from what the cache had before. */
  @Test
  void aSharedListThatFailsIsNoList() throws Exception {
    AtomicInteger lists = new AtomicInteger();
    CountDownLatch begun = new CountDownLatch(1);
    CountDownLatch waited = new CountDownLatch(1);
    OnDemandInformer<ConfigMap> informer =
        new OnDemandInformer<>(
            ConfigMap.class,
            each -> {
              if (lists.incrementAndGet() > 1) {
                throw new IllegalStateException("no list");
              }
              begun.countDown();
              try {
                waited.await();
              } catch (InterruptedException e) {
                throw new IllegalStateException(e);
              }
              return "1";
            },
            true);
    informer.start();
    Thread first = new Thread(informer::refresh);
    first.start();
    begun.await();
    List<CompletableFuture<Void>> shared = List.of(new CompletableFuture<>(), new CompletableFuture<>());
    for (CompletableFuture<Void> done : shared) {
      Thread t =
          new Thread(
              () -> {
                try {
                  informer.refresh();
                  done.complete(null);
                } catch (RuntimeException | Error e) {
                  done.completeExceptionally(e);
                }
              });
      t.start();
      while (t.getState() != Thread.State.BLOCKED) { // the list that has begun is too old for it
        Thread.onSpinWait();
      }
    }
    waited.countDown();
    for (CompletableFuture<Void> done : shared) {
      assertThrows(ExecutionException.class, () -> done.get(30, TimeUnit.SECONDS));
    }
    first.join();
    assertEquals(2, lists.get(), "a list that fails is shared too");
  }

  /** Reads in another thread while a list has an object out of the index: Fabric8 asks for its new place then. */
  private List<String> during(OnDemandInformer<ConfigMap> informer, Function<Indexer<ConfigMap>, List<String>> read)
      throws Exception {
    CompletableFuture<List<String>> found = new CompletableFuture<>();
    Thread reader =
        new Thread(
            () -> {
              try {
                found.complete(read.apply(informer.getIndexer()));
              } catch (RuntimeException | Error e) {
                found.completeExceptionally(e);
              }
            });
    int[] calls = {0};
    between.set(
        () -> {
          if (Thread.currentThread() == reader || ++calls[0] != 2) {
            return; // 1 is the old place
          }
          reader.start();
          while (!found.isDone() && reader.getState() != Thread.State.BLOCKED) {
            Thread.onSpinWait();
          }
        });
    informer.refresh();
    between.set(() -> {});
    assertTrue(calls[0] >= 2, "no index was asked");
    return found.get(30, TimeUnit.SECONDS);
  }
}
