package dev.reschedule.josdk;

import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;

import dev.reschedule.client.Answer;

/** Deliveries of a timer. */
final class Due {

  private Due() {}

  static CompletableFuture<Answer> deliver(RescheduleOperator operator, String key, int attempt, String data) {
    return operator
        .deliver(
            Map.of("ce-specversion", List.of("1.0"), "ce-id", List.of("1"), "ce-source", List.of("/s"), "ce-type",
                List.of("dev.reschedule.due"), "ce-reschedulekey", List.of(key), "ce-rescheduleattempt",
                List.of(String.valueOf(attempt))),
            data.getBytes(StandardCharsets.UTF_8))
        .toCompletableFuture();
  }
}
