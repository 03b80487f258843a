package dev.reschedule.josdk;

import java.lang.reflect.InvocationHandler;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.function.Consumer;
import java.util.stream.Collectors;

import io.fabric8.kubernetes.api.model.GenericKubernetesResource;
import io.fabric8.kubernetes.api.model.HasMetadata;
import io.fabric8.kubernetes.api.model.KubernetesResourceList;
import io.fabric8.kubernetes.api.model.ListMeta;
import io.fabric8.kubernetes.api.model.ListOptions;
import io.fabric8.kubernetes.api.model.ListOptionsBuilder;
import io.fabric8.kubernetes.client.KubernetesClient;
import io.fabric8.kubernetes.client.dsl.AnyNamespaceOperation;
import io.fabric8.kubernetes.client.dsl.FilterWatchListDeletable;
import io.fabric8.kubernetes.client.dsl.MixedOperation;
import io.fabric8.kubernetes.client.dsl.Nameable;
import io.fabric8.kubernetes.client.dsl.Namespaceable;
import io.fabric8.kubernetes.client.dsl.NonNamespaceOperation;
import io.fabric8.kubernetes.client.dsl.Resource;
import io.javaoperatorsdk.operator.processing.event.ResourceID;

/**
 * The client that event sources get. It is the operator's own, except that its informers are {@link OnDemandInformer}s.
 * Only interfaces of Fabric8 are used. Reconcilers get the operator's own.
 */
@SuppressWarnings({"unchecked", "rawtypes"}) // it is a proxy of methods with wildcards
final class OnDemandClient {

  private static final String ALL = "";

  private final KubernetesClient client;
  private final List<OnDemandInformer<?>> secondaries = new CopyOnWriteArrayList<>();
  private final Set<String> kinds = ConcurrentHashMap.newKeySet(); // of the secondaries that there are or were
  private final Map<String, Primary> primaries = new ConcurrentHashMap<>();
  private volatile Consumer<String> onRead = key -> {};
  private volatile boolean serving;

  OnDemandClient(KubernetesClient client) {
    this.client = client;
  }

  /** An informer of the primary resources of a namespace, or of all namespaces, and how to read one. */
  private record Primary(OnDemandInformer<?> informer, Operation operation) {}

  KubernetesClient proxy() {
    return (KubernetesClient)
        Proxy.newProxyInstance(
            KubernetesClient.class.getClassLoader(),
            new Class<?>[] {KubernetesClient.class},
            (self, method, args) -> {
              Object result = call(client, method, args);
              return switch (method.getName()) {
                case "resources" ->
                    new Operation(result, (Class<?>) args[0], HasMetadata.getKind((Class) args[0])).proxy();
                case "genericKubernetesResources" ->
                    new Operation(result, GenericKubernetesResource.class, genericKind(args)).proxy();
                default -> result;
              };
            });
  }

  /** The kind of an operation of generic resources; empty if it cannot be read from the arguments. */
  private static String genericKind(Object[] args) {
    return args.length == 2 && args[1] instanceof String kind ? kind : "";
  }

  /** Marks an operation of this client: it informs about the primary resources. */
  static <O> O primary(O operation) {
    return (O) ((Operation) Proxy.getInvocationHandler(operation)).asPrimary().proxy();
  }

  KubernetesClient client() {
    return client;
  }

  List<OnDemandInformer<?>> secondaries() {
    secondaries.removeIf(s -> serving && !s.isRunning()); // an activation condition ended it
    return List.copyOf(secondaries);
  }

  /** Reports whether event sources are asked about a kind. An activation condition that ends one keeps it so. */
  boolean informs(String kind) {
    return kinds.contains(kind) || kinds.contains("");
  }

  void serving() {
    serving = true;
  }

  /** Sets what gets the key of each primary resource that is read from the cache, before it is. */
  void onRead(Consumer<String> consumer) {
    onRead = consumer;
  }

  /** Returns the namespaces of the primary resources; the empty one is all. */
  Set<String> namespaces() {
    return primaries.entrySet().stream().filter(e -> e.getValue().informer().isRunning()).map(Map.Entry::getKey)
        .collect(Collectors.toSet());
  }

  /** Lists the primary resources of one of the namespaces. */
  void list(String namespace, Consumer<ResourceID> each) {
    primaries.get(namespace).operation().list(object -> each.accept(ResourceID.fromResource(object)));
  }

  private Primary primary(ResourceID id) {
    Primary p = primaries.get(id.getNamespace().orElse(ALL));
    if (p == null || !p.informer().isRunning()) {
      p = primaries.get(ALL);
    }
    return p == null || !p.informer().isRunning() ? null : p;
  }

  /** Returns the informer of a primary resource, or null if its namespace is not one of the controller's. */
  <P extends HasMetadata> OnDemandInformer<P> primaryOf(ResourceID id) {
    Primary p = primary(id);
    return p == null ? null : (OnDemandInformer<P>) p.informer();
  }

  /** Reads a primary resource as its informer would see it, with its selectors; null if there is none. */
  <P extends HasMetadata> P read(ResourceID id) {
    Primary p = primary(id);
    return p == null ? null : (P) p.operation().read(id);
  }

  private static Object call(Object target, Method method, Object[] args) throws Throwable {
    try {
      return method.invoke(target, args);
    } catch (InvocationTargetException e) {
      throw e.getCause();
    }
  }

  private record Step(Method method, Object[] args) {}

  private final class Operation implements InvocationHandler {
    private final Object root;
    private final Object target;
    private final Class<?> type;
    private final String kind;
    private final boolean isPrimary;
    private final String namespace;
    private final List<Step> selectors;
    private final Long limit;

    Operation(Object root, Class<?> type, String kind) {
      this(root, root, type, kind, false, ALL, List.of(), null);
    }

    private Operation(Object root, Object target, Class<?> type, String kind, boolean isPrimary, String namespace,
        List<Step> selectors, Long limit) {
      this.root = root;
      this.target = target;
      this.type = type;
      this.kind = kind;
      this.isPrimary = isPrimary;
      this.namespace = namespace;
      this.selectors = selectors;
      this.limit = limit;
    }

    Operation asPrimary() {
      return new Operation(root, target, type, kind, true, namespace, selectors, limit);
    }

    // The interfaces that event sources call. An operation has more, and some operations, such as the operation of
    // Deployments, have methods that no proxy can have together.
    Object proxy() {
      Class<?> c =
          target instanceof MixedOperation
              ? MixedOperation.class
              : target instanceof NonNamespaceOperation
                  ? NonNamespaceOperation.class
                  : target instanceof AnyNamespaceOperation
                      ? AnyNamespaceOperation.class
                      : FilterWatchListDeletable.class;
      return Proxy.newProxyInstance(c.getClassLoader(), new Class<?>[] {c}, this);
    }

    @Override
    public Object invoke(Object self, Method method, Object[] args) throws Throwable {
      String name = method.getName();
      if (name.equals("runnableInformer")) {
        return informer();
      }
      if (name.equals("withLimit")) {
        return new Operation(root, target, type, kind, isPrimary, namespace, selectors, (Long) args[0]).proxy();
      }
      Object result = call(target, method, args);
      if (name.equals("inNamespace")) {
        return new Operation(root, result, type, kind, isPrimary, (String) args[0], selectors, limit).proxy();
      }
      if (name.equals("inAnyNamespace")) {
        return new Operation(root, result, type, kind, isPrimary, ALL, selectors, limit).proxy();
      }
      if (name.startsWith("with") && result instanceof FilterWatchListDeletable) {
        List<Step> all = new ArrayList<>(selectors);
        if (!(args.length == 1 && args[0] == null)) { // withLabelSelector(null) selects all
          all.add(new Step(method, args));
        }
        return new Operation(root, result, type, kind, isPrimary, namespace, all, limit).proxy();
      }
      return result;
    }

    private Object informer() {
      if (isPrimary) {
        var informer = new OnDemandInformer<>((Class) type, (String key) -> onRead.accept(key));
        primaries.put(namespace, new Primary(informer, this));
        return informer;
      }
      var informer = new OnDemandInformer<>((Class) type, this::list, !serving);
      secondaries.add(informer);
      kinds.add(kind);
      return informer;
    }

    /** Lists by pages of the informerListLimit, if there is one. */
    private String list(Consumer<HasMetadata> each) {
      var all = (FilterWatchListDeletable<?, KubernetesResourceList<? extends HasMetadata>, ?>) target;
      ListOptions options = new ListOptionsBuilder().withLimit(limit).build();
      while (true) {
        KubernetesResourceList<? extends HasMetadata> page = limit == null ? all.list() : all.list(options);
        page.getItems().forEach(each);
        ListMeta meta = page.getMetadata();
        if (meta == null || meta.getContinue() == null || meta.getContinue().isEmpty()) {
          return meta == null ? null : meta.getResourceVersion();
        }
        options = new ListOptionsBuilder().withLimit(limit).withContinue(meta.getContinue()).build();
      }
    }

    private HasMetadata read(ResourceID id) {
      try {
        Object in = root;
        if (id.getNamespace().isPresent()) {
          in = ((Namespaceable<?>) root).inNamespace(id.getNamespace().get());
        }
        if (selectors.isEmpty()) {
          var object = (HasMetadata) ((Resource<?>) ((Nameable<?>) in).withName(id.getName())).get();
          if (object != null) {
            return object;
          }
          // Fabric8 reads the 404 of a kind that is not served as the 404 of an object. A list fails for it, so that
          // a missing kind is a failed delivery and not the end of its keys.
        }
        for (Step s : selectors) {
          in = call(in, s.method(), s.args());
        }
        var list =
            (KubernetesResourceList<?>)
                ((FilterWatchListDeletable<?, ?, ?>) in).withField("metadata.name", id.getName()).list();
        return list.getItems().isEmpty() ? null : (HasMetadata) list.getItems().get(0);
      } catch (RuntimeException | Error e) {
        throw e;
      } catch (Throwable e) {
        throw new IllegalStateException(e);
      }
    }
  }
}
