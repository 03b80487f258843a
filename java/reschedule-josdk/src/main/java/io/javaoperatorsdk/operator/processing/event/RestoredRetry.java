package io.javaoperatorsdk.operator.processing.event;

import java.time.Duration;
import java.util.Optional;

import io.javaoperatorsdk.operator.processing.retry.RetryExecution;

/** The retries of a key that another process has begun. */
class RestoredRetry implements RetryExecution {

  /** No configuration counts further by itself, and a delivery is not trusted to make us count for long. */
  private static final int MOST = 10_000;

  private final RetryExecution execution;
  private long deadline; // of the retry that this process has asked for; 0 is none

  RestoredRetry(RetryExecution execution, int attempts) {
    this.execution = execution;
    int n = Math.min(attempts, MOST);
    while (n > 0 && execution.nextDelay().isPresent()) {
      n--;
    }
  }

  @Override
  public Optional<Long> nextDelay() {
    Optional<Long> delay = execution.nextDelay();
    delay.ifPresent(d -> deadline = System.currentTimeMillis() + d);
    return delay;
  }

  /** JOSDK 5.4 and later calls it. The execution itself counts from the time when it was restored. */
  public Optional<Duration> remainingDurationUntilNextRetry() {
    long remaining = deadline - System.currentTimeMillis();
    return remaining > 0 ? Optional.of(Duration.ofMillis(remaining)) : Optional.empty();
  }

  @Override
  public int getAttemptCount() {
    return execution.getAttemptCount();
  }

  @Override
  public boolean isLastAttempt() {
    return execution.isLastAttempt();
  }
}
