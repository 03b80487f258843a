package dev.reschedule.quarkus;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;

import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.util.List;

import jakarta.inject.Inject;

import org.junit.jupiter.api.Test;

import io.javaoperatorsdk.operator.Operator;
import io.quarkus.arc.ClientProxy;
import io.quarkus.test.common.QuarkusTestResource;
import io.quarkus.test.junit.QuarkusTest;

import dev.reschedule.josdk.RescheduleOperator;

/** A Quarkus application with the module on its class path, and nothing else. */
@QuarkusTest
@QuarkusTestResource(ClusterResource.class)
class QuarkusOperatorTest {

  @Inject Operator operator;

  /** The operator of the application is woken by deliveries, and a reconciler may inject it. */
  @Test
  void theBeanIsOurs() throws Exception {
    RescheduleOperator ours = assertInstanceOf(RescheduleOperator.class, ClientProxy.unwrap(operator));
    HttpRequest delivery =
        HttpRequest.newBuilder(URI.create("http://127.0.0.1:" + ours.port() + "/"))
            .header("Ce-Specversion", "1.0").header("Ce-Id", "1").header("Ce-Source", "/s")
            .header("Ce-Type", "dev.reschedule.due").header("Ce-Reschedulekey", "Notice/default/a")
            .POST(HttpRequest.BodyPublishers.noBody())
            .build();
    HttpResponse<String> answer = HttpClient.newHttpClient().send(delivery, HttpResponse.BodyHandlers.ofString());
    assertEquals(200, answer.statusCode(), answer.body());
    assertEquals(List.of("hello of 1"), NoticeReconciler.runs);
  }
}
