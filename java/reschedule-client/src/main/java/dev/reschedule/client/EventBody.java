package dev.reschedule.client;

import java.io.ByteArrayOutputStream;
import java.net.http.HttpResponse;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.List;
import java.util.Queue;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.Flow;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

/**
 * The lines of a stream. The input stream of the JDK has no timeout, and swallows interrupts in Java 17. A chunk is asked
 * for when the previous chunk is taken, so that a slow reader costs no memory.
 */
final class EventBody implements HttpResponse.BodySubscriber<EventBody> {

  private static final List<ByteBuffer> END = new ArrayList<>();

  private final BlockingQueue<List<ByteBuffer>> chunks = new LinkedBlockingQueue<>();
  private final Queue<ByteBuffer> taken = new ArrayDeque<>();
  private Flow.Subscription subscription;
  private boolean stopped;

  @Override
  public CompletionStage<EventBody> getBody() {
    return CompletableFuture.completedFuture(this);
  }

  @Override
  public synchronized void onSubscribe(Flow.Subscription s) {
    subscription = s;
    if (stopped) {
      s.cancel();
    } else {
      s.request(1);
    }
  }

  @Override
  public void onNext(List<ByteBuffer> buffers) {
    chunks.add(buffers);
  }

  @Override
  public void onError(Throwable t) {
    chunks.add(END); // however it ended, the next connection goes on
  }

  @Override
  public void onComplete() {
    chunks.add(END);
  }

  /** Ends the stream, also for a thread that waits for a line. */
  synchronized void stop() {
    stopped = true;
    if (subscription != null) {
      subscription.cancel();
    }
    chunks.add(END);
  }

  private synchronized void more() {
    subscription.request(1);
  }

  /** Returns the next line; null when the stream has ended, or there is no whole line for the time of silence. */
  String line(int max, Duration silence) throws InterruptedException {
    long end = System.nanoTime() + silence.toNanos();
    ByteArrayOutputStream line = new ByteArrayOutputStream();
    while (true) {
      for (ByteBuffer b = taken.peek(); b != null; b = taken.peek()) {
        while (b.hasRemaining()) {
          byte c = b.get();
          if (c == '\n') {
            return line.toString(StandardCharsets.UTF_8).replaceFirst("\r$", "");
          }
          if (line.size() == max) {
            throw new IllegalArgumentException("an event is larger than " + Following.MAX_EVENT + " bytes");
          }
          line.write(c);
        }
        taken.remove();
      }
      List<ByteBuffer> chunk = chunks.poll(end - System.nanoTime(), TimeUnit.NANOSECONDS);
      if (chunk == null || chunk == END) {
        return null;
      }
      taken.addAll(chunk);
      more();
    }
  }
}
