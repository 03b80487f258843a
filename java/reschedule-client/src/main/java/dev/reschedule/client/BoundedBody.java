package dev.reschedule.client;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.net.http.HttpResponse;
import java.nio.ByteBuffer;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.Flow;

/** The body of an answer, up to a number of bytes. More is an error, or is cut off. */
final class BoundedBody implements HttpResponse.BodySubscriber<byte[]> {

  private final int max;
  private final boolean cut;
  private final ByteArrayOutputStream bytes = new ByteArrayOutputStream();
  private final CompletableFuture<byte[]> body = new CompletableFuture<>();
  private Flow.Subscription subscription;

  BoundedBody(int max, boolean cut) {
    this.max = max;
    this.cut = cut;
  }

  @Override
  public CompletionStage<byte[]> getBody() {
    return body;
  }

  @Override
  public void onSubscribe(Flow.Subscription s) {
    subscription = s;
    s.request(Long.MAX_VALUE);
  }

  @Override
  public void onNext(List<ByteBuffer> buffers) {
    for (ByteBuffer b : buffers) {
      int free = max - bytes.size();
      byte[] chunk = new byte[Math.min(free, b.remaining())];
      boolean more = b.remaining() > free;
      b.get(chunk);
      bytes.write(chunk, 0, chunk.length);
      if (more) {
        subscription.cancel();
        if (cut) {
          body.complete(bytes.toByteArray());
        } else {
          body.completeExceptionally(new IOException("the answer is larger than " + max + " bytes"));
        }
        return;
      }
    }
  }

  @Override
  public void onError(Throwable t) {
    body.completeExceptionally(t);
  }

  @Override
  public void onComplete() {
    body.complete(bytes.toByteArray());
  }
}
