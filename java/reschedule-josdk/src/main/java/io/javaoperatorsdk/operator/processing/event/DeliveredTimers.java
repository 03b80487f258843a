package io.javaoperatorsdk.operator.processing.event;

import java.time.Duration;
import java.util.Map;
import java.util.OptionalLong;
import java.util.concurrent.ConcurrentHashMap;

import io.fabric8.kubernetes.api.model.HasMetadata;
import io.javaoperatorsdk.operator.processing.event.source.timer.TimerEventSource;

/**
 * The timers of a controller, without a clock that rings: the source of the delivery keeps them. Retries,
 * rescheduleAfter, the maximal interval and the rate limiter all come by here.
 */
class DeliveredTimers<P extends HasMetadata> extends TimerEventSource<P> {

  /** A source keeps no longer time than 100 years, and the time in nanoseconds must not overflow. */
  private static final long LONGEST = Duration.ofDays(36_500).toMillis();

  private final Map<ResourceID, Long> due = new ConcurrentHashMap<>();
  private final EventHandler handler;

  DeliveredTimers(EventHandler handler) {
    super("DeliveredTimers", false);
    this.handler = handler;
  }

  @Override
  public void scheduleOnce(ResourceID id, long delay) {
    due.remove(id);
    if (delay < 0) {
      throw new IllegalArgumentException("Negative delay."); // as java.util.Timer has it
    }
    if (delay == 0) {
      handler.handleEvent(new Event(id));
    } else {
      due.put(id, System.nanoTime() + Math.min(delay, LONGEST) * 1_000_000L);
    }
  }

  @Override
  public void cancelOnceSchedule(ResourceID id) {
    due.remove(id);
  }

  /** Returns the rest of the timer in milliseconds, at least 1, and rounded up. */
  OptionalLong remaining(ResourceID id) {
    Long at = due.get(id);
    return at == null
        ? OptionalLong.empty()
        : OptionalLong.of(Math.max(1, (at - System.nanoTime() + 999_999) / 1_000_000));
  }
}
