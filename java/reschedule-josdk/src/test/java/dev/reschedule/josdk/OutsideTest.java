package dev.reschedule.josdk;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

import com.sun.net.httpserver.HttpServer;

import io.fabric8.kubernetes.api.model.HasMetadata;
import io.fabric8.kubernetes.client.KubernetesClient;
import io.javaoperatorsdk.operator.RegisteredController;
import io.javaoperatorsdk.operator.api.monitoring.Metrics;
import io.javaoperatorsdk.operator.api.reconciler.Context;
import io.javaoperatorsdk.operator.api.reconciler.ControllerConfiguration;
import io.javaoperatorsdk.operator.api.reconciler.EventSourceContext;
import io.javaoperatorsdk.operator.api.reconciler.Reconciler;
import io.javaoperatorsdk.operator.api.reconciler.UpdateControl;
import io.javaoperatorsdk.operator.processing.event.Event;
import io.javaoperatorsdk.operator.processing.event.ResourceID;
import io.javaoperatorsdk.operator.processing.event.source.AbstractEventSource;
import io.javaoperatorsdk.operator.processing.event.source.EventSource;

import dev.reschedule.client.Schedules;

/** Events of sources that live in the process. */
@Timeout(150)
class OutsideTest {

  private static final class Inbox extends AbstractEventSource<Void, Site> {
    Inbox() {
      super(Void.class, "inbox");
    }

    void receive(ResourceID id) {
      getEventHandler().handleEvent(new Event(id));
    }

    @Override
    public Set<Void> getSecondaryResources(Site site) {
      return Set.of();
    }
  }

  @ControllerConfiguration(name = "inbound")
  private static final class Inbound implements Reconciler<Site> {
    final Inbox source = new Inbox();
    volatile int runs;

    @Override
    public List<EventSource<?, Site>> prepareEventSources(EventSourceContext<Site> context) {
      return List.of(source);
    }

    @Override
    public UpdateControl<Site> reconcile(Site site, Context<Site> context) {
      runs++;
      return UpdateControl.noUpdate();
    }
  }

  private final BlockingQueue<String> calls = new LinkedBlockingQueue<>();
  private final Inbound reconciler = new Inbound();
  private volatile Runnable succeeded = () -> {};
  private HttpServer api;
  private KubernetesClient client;
  private RescheduleOperator operator;
  private RegisteredController<Site> controller;

  private void start(String ns) throws Exception {
    api = HttpServer.create(new InetSocketAddress("127.0.0.1", 0), 0);
    api.createContext(
        "/",
        x -> {
          calls.add(x.getRequestMethod() + " " + x.getRequestURI() + " "
              + new String(x.getRequestBody().readAllBytes(), StandardCharsets.UTF_8));
          byte[] key = "{\"key\":\"Site/outside/a\",\"revision\":1,\"state\":\"due\"}".getBytes(StandardCharsets.UTF_8);
          x.sendResponseHeaders(200, key.length);
          x.getResponseBody().write(key);
          x.close();
        });
    api.start();
    client = Kube.get().client();
    create(Kube.get().namespace(ns), "a");
    operator =
        new RescheduleOperator(
            o -> o.withKubernetesClient(client)
                .withMetrics(
                    new Metrics() {
                      // No @Override: JOSDK 5.2 has another name for it, and only compiles this.
                      public void reconciliationSucceeded(HasMetadata object, Map<String, Object> metadata) {
                        succeeded.run();
                      }
                    }))
            .withoutServer()
            .withSchedules(Schedules.at("http://127.0.0.1:" + api.getAddress().getPort() + "/ops/s"));
    controller = operator.<Site>register(reconciler, c -> c.settingNamespace(ns));
    operator.start();
  }

  @AfterEach
  void stop() {
    operator.stop();
    api.stop(0);
  }

  private void create(String ns, String name) {
    client.resource(Site.of(ns, name, "plain")).create();
  }

  private int deliver(String key) {
    return Due.deliver(operator, key, 0, "").join().status();
  }

  /** Such an event asks the source for a run, once, and runs nothing by itself: nothing would keep its outcome. */
  @Test
  void anEventOfTheProcessIsScheduled() throws Exception {
    start("outside");
    reconciler.source.receive(new ResourceID("a", "outside"));
    reconciler.source.receive(new ResourceID("a", "outside"));
    String call = calls.poll(30, TimeUnit.SECONDS);
    assertTrue(call != null && call.startsWith("PUT /ops/s/schedules/Site%2Foutside%2Fa {\"delay\":\"PT0S\""), call);
    assertTrue(call.contains("\"policy\":\"earliest\""), call);
    assertEquals(0, reconciler.runs);
    assertEquals(200, deliver("Site/outside/a"));
    assertEquals(1, reconciler.runs);
    assertNull(calls.poll(), "it asked twice");
  }

  /** An event that comes while the delivery of its key is answered has no run that no delivery waits for. */
  @Test
  void anEventBesideTheAnswerIsScheduled() throws Exception {
    start("outside-end");
    Thread late = new Thread(() -> reconciler.source.receive(new ResourceID("a", "outside-end")));
    succeeded =
        () -> { // JOSDK calls it with the lock of its processor, which the event then waits for
          succeeded = () -> {};
          late.start();
          while (late.isAlive() && late.getState() != Thread.State.BLOCKED) {
            Thread.onSpinWait();
          }
        };
    assertEquals(200, deliver("Site/outside-end/a"));
    late.join();
    String call = calls.poll(30, TimeUnit.SECONDS);
    assertTrue(call != null && call.startsWith("PUT /ops/s/schedules/Site%2Foutside-end%2Fa "), "asked: " + call);
    assertEquals(1, reconciler.runs, "a run without a delivery");
  }

  /** A controller that is given another namespace asks for what exists there, as its informer would list it. */
  @Test
  void aNewNamespaceIsScheduled() throws Exception {
    start("outside-first");
    create(Kube.get().namespace("outside-second"), "b");
    controller.changeNamespaces("outside-first", "outside-second");
    String call = calls.poll(30, TimeUnit.SECONDS);
    assertTrue(call != null && call.startsWith("PUT /ops/s/schedules/Site%2Foutside-second%2Fb "), call);
    assertEquals(200, deliver("Site/outside-second/b"));
    assertEquals(1, reconciler.runs);
    assertNull(calls.poll(), "it asked for what it knew");
    controller.changeNamespaces("outside-second");
    assertEquals(204, deliver("Site/outside-first/a"), "it left this namespace");
    assertEquals(1, reconciler.runs);
  }
}
