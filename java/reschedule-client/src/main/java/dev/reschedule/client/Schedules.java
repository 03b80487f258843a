package dev.reschedule.client;

import java.io.ByteArrayInputStream;
import java.net.URI;
import java.net.URLEncoder;
import java.net.http.HttpClient;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import java.security.cert.X509Certificate;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.Spliterator;
import java.util.Spliterators;
import java.util.TreeMap;
import java.util.function.Function;
import java.util.stream.Stream;
import java.util.stream.StreamSupport;

import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;
import javax.net.ssl.X509TrustManager;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;

/**
 * The schedules of one RescheduleSource. It is safe for use by many threads.
 *
 * <p>A call is repeated for up to 10 s where that is safe and useful: when the source cannot be reached, is full, or is
 * being replaced. A refusal is a {@link ScheduleException}. A client has threads, which {@link #close} ends: make one for
 * each source and keep it.
 */
public final class Schedules implements AutoCloseable {

  /** Items in one call; the contract's bound. */
  private static final int MAX_ITEMS = 1000;

  /** Bytes of items in one call; half of the contract's bound. */
  private static final int MAX_ITEM_BYTES = 8 << 20;

  /** A resync reads the keys of all objects; the adapter gives it as long. */
  private static final Duration RESYNC_TIMEOUT = Duration.ofMinutes(10);

  /** A stream of events that is silent for so long is lost: a source writes something every 15 s. */
  private static final Duration SILENCE = Duration.ofMinutes(1);

  private static final Path DEFAULT_TOKEN = Path.of("/var/run/reschedule/token");

  private final Calls calls;

  private Schedules(Calls calls) {
    this.calls = calls;
  }

  /** Returns a client of the source at the address, which is the source's status.address.url, without a token. */
  public static Schedules at(String address) {
    return builder(address).build();
  }

  /** Ends the threads of the client. Calls and streams that are under way fail. */
  @Override
  public void close() {
    calls.close();
  }

  /** Begins a client of the source at the address, http(s)://HOST/NAMESPACE/NAME. */
  public static Builder builder(String address) {
    return new Builder(address);
  }

  /**
   * Returns a client by the environment of a pod: RESCHEDULE_URL is the source's address and required,
   * RESCHEDULE_TOKEN_FILE is /var/run/reschedule/token by default, if there is one, and RESCHEDULE_CA_CERTS are
   * certificates to trust in addition to the system's, in PEM.
   */
  public static Schedules fromEnvironment() {
    return fromEnvironment(System.getenv());
  }

  static Schedules fromEnvironment(Map<String, String> env) {
    String address = env.getOrDefault("RESCHEDULE_URL", "");
    if (address.isEmpty()) {
      throw new IllegalStateException(
          "RESCHEDULE_URL is not set: set it to the status.address.url of the RescheduleSource");
    }
    Builder b = builder(address).caCertificates(env.getOrDefault("RESCHEDULE_CA_CERTS", ""));
    String file = env.getOrDefault("RESCHEDULE_TOKEN_FILE", "");
    if (!file.isEmpty()) {
      b.tokenFile(Path.of(file));
    } else if (Files.exists(DEFAULT_TOKEN)) {
      b.tokenFile(DEFAULT_TOKEN);
    }
    return b.build();
  }

  /** The choices of a client. */
  public static final class Builder {
    private final String address;
    private Token token = () -> null;
    private Duration timeout = Duration.ofSeconds(15);
    private Duration budget = Duration.ofSeconds(10);
    private int maxAnswer = 64 << 20;
    private String caCertificates = "";

    private Builder(String address) {
      this.address = checkAddress(address);
    }

    /** Sends the token of a file, which is read for every try. */
    public Builder tokenFile(Path path) {
      token = Token.file(path);
      return this;
    }

    /** Always sends this token. It expires. */
    public Builder token(String text) {
      token = Token.fixed(text);
      return this;
    }

    /** Sets how long one try may take, with its answer; 15 s by default. */
    public Builder timeout(Duration d) {
      timeout = d;
      return this;
    }

    /** Sets how long a call is repeated; 10 s by default, and zero is a single try. */
    public Builder retryBudget(Duration d) {
      budget = d;
      return this;
    }

    /** Sets the largest answer that is read; 64 MiB by default. A page of keys with large events is the largest. */
    public Builder maxAnswerBytes(int bytes) {
      maxAnswer = bytes;
      return this;
    }

    /** Trusts these certificates (PEM) in addition to the system's. Empty is none, as in status.address.CACerts. */
    public Builder caCertificates(String pem) {
      caCertificates = pem;
      return this;
    }

    /** Makes the client. */
    public Schedules build() {
      HttpClient.Builder http =
          HttpClient.newBuilder()
              .version(HttpClient.Version.HTTP_1_1)
              .connectTimeout(Duration.ofSeconds(5))
              .followRedirects(HttpClient.Redirect.NEVER);
      if (!caCertificates.isBlank()) {
        http.sslContext(trusting(caCertificates));
      }
      return new Schedules(new Calls(http, address, token, timeout, budget, maxAnswer));
    }
  }

  /** Refuses an address that is not a source's, where a 404 would look like a key that is not scheduled. */
  private static String checkAddress(String address) {
    URI u = URI.create(address);
    String path = u.getRawPath() == null ? "" : u.getRawPath().replaceAll("/$", "");
    if (u.getHost() == null || !Set.of("http", "https").contains(String.valueOf(u.getScheme()).toLowerCase(Locale.ROOT))) {
      throw new IllegalArgumentException("the address does not begin with http(s)://HOST: " + address);
    }
    if (u.getRawUserInfo() != null || u.getRawQuery() != null || u.getRawFragment() != null) {
      throw new IllegalArgumentException("the address of " + u.getHost() + " has a user, a query or a fragment");
    }
    if (path.chars().filter(c -> c == '/').count() < 2) {
      throw new IllegalArgumentException("the address does not end with /NAMESPACE/NAME of a source: " + address);
    }
    return u.getScheme() + "://" + u.getRawAuthority() + path;
  }

  private static SSLContext trusting(String pem) {
    try {
      KeyStore all = KeyStore.getInstance(KeyStore.getDefaultType());
      all.load(null, null);
      TrustManagerFactory system = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
      system.init((KeyStore) null);
      List<X509Certificate> certificates = new ArrayList<>();
      for (var manager : system.getTrustManagers()) {
        if (manager instanceof X509TrustManager x) {
          certificates.addAll(List.of(x.getAcceptedIssuers()));
        }
      }
      for (var c :
          CertificateFactory.getInstance("X.509")
              .generateCertificates(new ByteArrayInputStream(pem.getBytes(StandardCharsets.US_ASCII)))) {
        certificates.add((X509Certificate) c);
      }
      for (int i = 0; i < certificates.size(); i++) {
        all.setCertificateEntry("ca" + i, certificates.get(i));
      }
      TrustManagerFactory both = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
      both.init(all);
      SSLContext context = SSLContext.getInstance("TLS");
      context.init(null, both.getTrustManagers(), null);
      return context;
    } catch (GeneralSecurityException | java.io.IOException e) {
      throw new IllegalArgumentException("the CA certificates cannot be used: are they PEM? " + e.getMessage(), e);
    }
  }

  /** Schedules the key. Conditions are checked before the policy. */
  public Schedule schedule(String key, Request request, Condition... conditions) {
    Calls.Call c = keyed("PUT", key, conditions);
    return answer(
        key,
        calls.make(
            c.with(Json.write(Json.request(request)))
                .repeatable(request.repeatable() && conditions.length == 0)
                .wanting(200, 201)));
  }

  /** Returns the key; {@link ScheduleException.NotFound} once nothing waits and nothing is in flight under it. */
  public Schedule get(String key) {
    return answer(key, calls.make(keyed("GET", key).repeatable(true).wanting(200)));
  }

  /**
   * Cancels the occurrence that waits under the key, and succeeds too when there is none. Then no delivery starts. A
   * delivery in flight may finish, and its answer has no effect.
   */
  public void cancel(String key, Condition... conditions) {
    calls.make(keyed("DELETE", key, conditions).repeatable(conditions.length == 0).wanting(204));
  }

  /** Cancels all keys that begin with the prefix, and returns their number. */
  public long cancelPrefix(String prefix) {
    return cancelMany("prefix=" + query("prefix", prefix));
  }

  /** Cancels every key of the source, and returns their number. */
  public long cancelAll() {
    return cancelMany("all=true");
  }

  private long cancelMany(String which) {
    return number(calls.make(Calls.call("DELETE", "/schedules?" + which).repeatable(true).wanting(200)), "deleted");
  }

  /**
   * Lists keys, page by page as the stream is read. The pages are not a snapshot: a key that is scheduled or done
   * meanwhile may be in the list or not.
   */
  public Stream<Schedule> list(Listing listing) {
    return pages(
        "/schedules?prefix=" + query("prefix", listing.prefix()) + "&order=" + listing.order() + "&limit=" + listing.pageSize(),
        Json::schedule);
  }

  private <T> Stream<T> pages(String path, Function<JsonNode, T> read) {
    Iterator<T> all =
        new Iterator<>() {
          private Iterator<JsonNode> page = List.<JsonNode>of().iterator();
          private String next = "";

          @Override
          public boolean hasNext() {
            while (!page.hasNext() && next != null) {
              String token = next.isEmpty() ? "" : "&continue=" + query("continue", next);
              JsonNode answer = calls.make(Calls.call("GET", path + token).repeatable(true).wanting(200));
              page = answer.path("items").elements();
              next = answer.path("continue").asText("");
              next = next.isEmpty() ? null : next;
            }
            return page.hasNext();
          }

          @Override
          public T next() {
            if (!hasNext()) {
              throw new java.util.NoSuchElementException();
            }
            return readable(page.next(), read);
          }
        };
    return StreamSupport.stream(Spliterators.spliteratorUnknownSize(all, Spliterator.ORDERED), false);
  }

  /**
   * Makes the key due now, and keeps its event, attempt counter, uid, reason and maxInterval. A key in flight comes up once
   * more afterwards. {@link ScheduleException.NotFound} for a key that is absent.
   */
  public Schedule run(String key) {
    return answer(key, calls.make(Calls.call("POST", path("/schedules/", key) + "/run").wanting(200)));
  }

  /** Returns the last outcomes of the key, also when it is absent now. */
  public History history(String key) {
    return readable(
        calls.make(Calls.call("GET", path("/schedules/", key) + "/history").repeatable(true).wanting(200)), Json::history);
  }

  /** Lists the dead letters whose keys begin with the prefix, page by page as the stream is read. Empty is all. */
  public Stream<DeadLetter> deadLetters(String prefix) {
    return pages("/deadletters?limit=1000&prefix=" + query("prefix", prefix), Json::deadLetter);
  }

  /** Returns the dead letter of a key; {@link ScheduleException.NotFound} if it has none. */
  public DeadLetter deadLetter(String key) {
    return readable(
        calls.make(Calls.call("GET", path("/deadletters/", key)).repeatable(true).wanting(200)), Json::deadLetter);
  }

  /** Removes the dead letter of a key, and succeeds too when there is none. */
  public void discard(String key) {
    calls.make(Calls.call("DELETE", path("/deadletters/", key)).repeatable(true).wanting(204));
  }

  /** Removes all dead letters whose keys begin with the prefix, and returns their number. */
  public long discardPrefix(String prefix) {
    return number(
        calls.make(Calls.call("DELETE", "/deadletters?prefix=" + query("prefix", prefix)).repeatable(true).wanting(200)), "deleted");
  }

  /**
   * Makes a new occurrence of the dead letter of a key, due now, with a new id and attempt 0, and removes the dead letter.
   * {@link ScheduleException.NotFound} if it has none, {@link ScheduleException.AlreadyExists} if the key has something newer.
   */
  public void redrive(String key) {
    redrive(key, false);
  }

  /** Redrives, with replace also in the place of something newer that waits or is in flight, whose event is lost. */
  public void redrive(String key, boolean replace) {
    calls.make(Calls.call("POST", path("/deadletters/", key) + "/redrive" + (replace ? "?replace=true" : "")).wanting(200));
  }

  /**
   * Redrives all dead letters whose keys begin with the prefix and have nothing newer, and returns their number. After an
   * error some are.
   */
  public long redrivePrefix(String prefix) {
    return redrivePrefix(prefix, false);
  }

  /** Redrives all dead letters whose keys begin with the prefix, with replace also in the place of something newer. */
  public long redrivePrefix(String prefix, boolean replace) {
    String which = "prefix=" + query("prefix", prefix) + (replace ? "&replace=true" : "");
    return number(calls.make(Calls.call("POST", "/deadletters/redrive?" + which).wanting(200)), "redriven");
  }

  /** Follows what happens at the source from the first {@link Following#hasNext} on, which connects. Close it. */
  public Following follow() {
    return follow(null);
  }

  /** Follows what happens at the source behind the event with the id. */
  public Following follow(String after) {
    return follow(after, SILENCE);
  }

  Following follow(String after, Duration silence) {
    return new Following(calls, after, silence);
  }

  /** Returns how much waits at the source. */
  public Counts counts() {
    JsonNode answer = calls.make(Calls.call("GET", "").repeatable(true).wanting(200));
    try {
      return Json.counts(answer);
    } catch (IllegalArgumentException e) {
      throw unreadable(e);
    }
  }

  /**
   * Schedules many keys, in calls of up to 1000 items. Each item is judged alone, and has its outcome at the same index.
   * The same key twice is applied in order. An exception is of one call: the calls before it have been made, and
   * the outcomes of the call itself are not known.
   */
  public List<Outcome> scheduleAll(List<Item> items) {
    List<Outcome> outcomes = new ArrayList<>(items.size());
    for (int from = 0; from < items.size(); from = outcomes.size()) {
      outcomes.addAll(scheduleSome(items, from));
    }
    return List.copyOf(outcomes);
  }

  private List<Outcome> scheduleSome(List<Item> items, int from) {
    ObjectNode body = Json.object();
    ArrayNode list = body.putArray("items");
    boolean repeatable = true;
    long bytes = 0;
    int to = from;
    for (; to < items.size() && list.size() < MAX_ITEMS && bytes < MAX_ITEM_BYTES; to++) {
      Item item = items.get(to);
      ObjectNode one = Json.object().put("key", utf8("key", item.key()));
      one.setAll(Json.request(item.request()));
      list.add(one);
      bytes += Json.write(one).length;
      repeatable &= item.request().repeatable();
    }
    JsonNode answer =
        calls.make(Calls.call("POST", "/schedules").with(Json.write(body)).repeatable(repeatable).wanting(200));
    JsonNode answers = answer.path("items");
    if (answers.size() != list.size()) {
      throw unreadable(new IllegalArgumentException(list.size() + " items were answered with " + answers.size()));
    }
    List<Outcome> outcomes = new ArrayList<>();
    for (int i = 0; i < list.size(); i++) {
      JsonNode a = answers.get(i);
      String key = items.get(from + i).key();
      String code = a.path("code").asText("");
      outcomes.add(
          code.isEmpty()
              ? new Outcome(key, readable(a), null)
              : new Outcome(key, null,
                  ScheduleException.of(
                      a.path("status").asInt(), code, Json.text(a, "field"), a.path("detail").asText(""), null, null)));
    }
    return outcomes;
  }

  /**
   * Schedules every watched object of a source with spec.watch once, spread over a time, and returns their number. It
   * may take minutes.
   *
   * @param over the time; null is 10 minutes
   * @param prefix only keys that begin with it; null is all
   */
  public long resync(Duration over, String prefix) {
    ObjectNode body = Json.object();
    if (over != null) {
      body.put("over", over.toString());
    }
    if (prefix != null) {
      body.put("prefix", prefix);
    }
    return number(
        calls.make(Calls.call("POST", "/resync").with(Json.write(body)).repeatable(true).wanting(200).within(RESYNC_TIMEOUT)),
        "scheduled");
  }

  /**
   * Sends a CloudEvent to the source. The attributes reschedulekey, rescheduleafter, rescheduleat and reschedulepolicy
   * steer it. It is durable when this returns.
   */
  public void send(CloudEvent event) {
    Map<String, String> headers = new TreeMap<>(event.headers());
    calls.make(
        Calls.call("POST", "").with(event.data() == null ? new byte[0] : event.data()).headers(headers)
            .repeatable(true) // it has an id
            .wanting(202));
  }

  private static Calls.Call keyed(String method, String key, Condition... conditions) {
    Map<String, String> headers = new TreeMap<>();
    String path = path("/schedules/", key);
    for (Condition c : conditions) {
      if (c.header == null && !path.contains("?")) {
        path += "?uid=" + query("uid", c.value);
      } else if (c.header == null || headers.put(c.header, c.value) != null) {
        throw new IllegalArgumentException("there are two conditions of the same kind: give one");
      }
    }
    return Calls.call(method, path).headers(headers);
  }

  private static String path(String collection, String key) {
    if (key.isEmpty()) {
      // A proxy that cleans paths would make its path the path of all keys.
      throw ScheduleException.of(0, "invalid_argument", "key", "key: is empty", null, null);
    }
    return collection + segment(key);
  }

  /** Makes a key one segment of a path, also . and .., which a proxy would remove. */
  static String segment(String key) {
    return query("key", key).replace(".", "%2E");
  }

  private static String query(String field, String s) {
    return URLEncoder.encode(utf8(field, s), StandardCharsets.UTF_8).replace("+", "%20");
  }

  /** Refuses half of a surrogate pair, which UTF-8 does not have: an encoder makes a question mark of it, another key. */
  private static String utf8(String field, String s) {
    if (!StandardCharsets.UTF_8.newEncoder().canEncode(s)) {
      throw ScheduleException.of(
          0, "invalid_argument", field, field + ": has one half of a surrogate pair: it is no text", null, null);
    }
    return s;
  }

  /** Checks the key of an answer: a proxy may have cleaned the path. */
  private static Schedule answer(String key, JsonNode node) {
    Schedule s = readable(node);
    if (!s.key().equals(key)) {
      throw unreadable(new IllegalArgumentException("it is about " + s.key() + ": does a proxy change paths?"));
    }
    return s;
  }

  private static Schedule readable(JsonNode node) {
    return readable(node, Json::schedule);
  }

  private static <T> T readable(JsonNode node, Function<JsonNode, T> read) {
    try {
      return read.apply(node);
    } catch (IllegalArgumentException | java.time.DateTimeException e) {
      throw unreadable(e);
    }
  }

  private static long number(JsonNode node, String name) {
    try {
      return Json.required(node, name).asLong();
    } catch (IllegalArgumentException e) {
      throw unreadable(e);
    }
  }

  private static ScheduleException unreadable(RuntimeException e) {
    return ScheduleException.of(
        200, "", null, "the answer is not an answer of a RescheduleSource: " + e.getMessage(), null, e);
  }
}
