package dev.reschedule.client;

import java.nio.charset.StandardCharsets;
import java.time.DateTimeException;
import java.time.Duration;
import java.util.Iterator;
import java.util.NoSuchElementException;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

/**
 * What happens at a source, one event after the other. {@link #hasNext} waits for the next event. It connects again when the
 * connection is lost or the source ends it, and goes on where it was, as far as the source remembers.
 *
 * <p>One thread reads; any thread may close. {@link #hasNext} returns false once it is closed or its thread is interrupted,
 * and throws a {@link ScheduleException} that another try would have again. After each of them it is closed.
 */
public final class Following implements Iterator<LiveEvent>, AutoCloseable {

  /** Bytes of an event; its key has 512. */
  static final int MAX_EVENT = 64 << 10;

  private static final int MAX_ID = 256;

  private final Calls calls;
  private final Duration silence;
  private final CountDownLatch closed = new CountDownLatch(1);
  private Runnable stop = () -> {}; // ends what the reader waits for; guarded by this
  private EventBody body;
  private String after;
  private boolean missed;
  private int failures;
  private LiveEvent next;

  Following(Calls calls, String after, Duration silence) {
    this.calls = calls;
    this.after = after == null || after.isEmpty() ? null : checkId(after);
    this.silence = silence;
  }

  @Override
  public boolean hasNext() {
    boolean whole = false;
    try {
      while (next == null && !isClosed()) {
        ScheduleException refused = body == null ? connect() : null;
        next = body == null ? null : read();
        if (next == null) {
          closed.await(Calls.backoff(failures++, refused == null ? null : refused.retryAfter()), TimeUnit.MILLISECONDS);
        }
      }
      whole = !isClosed();
    } catch (InterruptedException e) {
      Thread.currentThread().interrupt();
    } catch (CancellationException e) {
      // It was closed while it connected.
    } finally {
      if (!whole) {
        close();
        next = null;
      }
    }
    return next != null;
  }

  @Override
  public LiveEvent next() {
    if (!hasNext()) {
      throw new NoSuchElementException();
    }
    LiveEvent e = next;
    next = null;
    return e;
  }

  /** Ends the stream, also for a thread that waits for an event. */
  @Override
  public void close() {
    closed.countDown();
    synchronized (this) {
      stop.run();
    }
  }

  private boolean isClosed() {
    return closed.getCount() == 0;
  }

  private synchronized void stopBy(Runnable r) {
    stop = r;
    if (isClosed()) {
      r.run();
    }
  }

  /** Begins a stream. An exception that is returned allows another try. */
  private ScheduleException connect() throws InterruptedException {
    Calls.Stream stream = calls.stream("/events", after);
    stopBy(stream::cancel);
    try {
      body = stream.open();
      return null;
    } catch (Calls.Again e) {
      return e.exception;
    }
  }

  /** Reads the next event; null when the stream has ended. An event that breaks off is repeated by the next stream. */
  private LiveEvent read() throws InterruptedException {
    String id = null;
    String kind = "";
    StringBuilder data = new StringBuilder();
    try {
      int free = MAX_EVENT;
      for (String line = body.line(free, silence); line != null; line = body.line(free, silence)) {
        int colon = line.indexOf(':');
        String name = colon < 0 ? line : line.substring(0, colon);
        String value = colon < 0 ? "" : line.substring(colon + 1).replaceFirst("^ ", "");
        free = Math.max(0, free - line.length());
        switch (name) {
          case "id" -> id = checkId(value);
          case "event" -> kind = value;
          case "data" -> data.append(value).append('\n');
          default -> {}
        }
        missed |= colon == 0 && value.contains("not known any more");
        if (!line.isEmpty()) {
          continue;
        }
        LiveEvent e = data.isEmpty() ? null : event(id, kind, data.toString());
        after = id == null ? after : id;
        if (e != null) {
          missed = false;
          failures = 0;
          return e;
        }
        id = null;
        kind = "";
        free = MAX_EVENT;
      }
    } catch (IllegalArgumentException | DateTimeException e) {
      throw Calls.noStream(e.getMessage(), e);
    }
    body.stop();
    body = null;
    return null;
  }

  private LiveEvent event(String id, String kind, String data) {
    return Json.liveEvent(Json.read(data.getBytes(StandardCharsets.UTF_8), "an event"), id, kind, missed);
  }

  private static String checkId(String id) {
    if (id.length() > MAX_ID || !id.chars().allMatch(c -> c > ' ' && c <= '~')) {
      throw new IllegalArgumentException(
          "the id of an event has more than " + MAX_ID + " characters, a blank, or one that is not ASCII");
    }
    return id;
  }
}
