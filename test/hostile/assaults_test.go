package hostile

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// numbered are sources of one kind.
func numbered(name string, n int, sink, spec string) (sources []source) {
	for i := range n {
		sources = append(sources, source{fmt.Sprintf("%s-%d", name, i), sink, spec})
	}
	return sources
}

const (
	hangingSources = 13 // enough to take every slot of delivery, when only sources are told apart
	largeSources   = 20
	loopSources    = 13
	rowSources     = 13
	largeAfter     = 10 * time.Second
	trickling      = 200  // keys
	manySources    = 200  // of a namespace
	idleSecured    = 150  // connections with TLS of a namespace; five take more than there are
	idleEach       = 1000 // connections of a namespace to each port; five take more than there are
)

// posts makes bulk calls, as each does.
func posts(attack string, pace time.Duration, first int, call func(n int) (below, body string)) func(context.Context, *attacker) {
	return func(ctx context.Context, a *attacker) {
		a.each(ctx, pace, first, func(n int) {
			below, body := call(n)
			a.call(ctx, attack, http.MethodPost, below, body)
		})
	}
}

// asks writes a GET.
func asks(path string) func(net.Conn) error {
	return func(conn net.Conn) error {
		_, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", path)
		return err
	}
}

// assaults are the attacks, by name. All are bounded in rate and number: it is
// the attack that has to harm, not the processor that the attackers take.
var assaults = map[string]assault{
	// Deliveries without data, to a sink that answers with 1 MB and never ends.
	"replies": {
		sources: []source{{"replies", "reply", "limits: {maxInFlight: 4096}"}},
		lands:   []string{delivered},
		run: posts("replies", time.Second, 10, func(n int) (below, body string) {
			return "replies/schedules", items("r", n%10*300, 300, "")
		}),
	},
	// Events as large as may be, to sinks that hang.
	"large": {
		sources: numbered("large", largeSources, "hang", ""),
		lands:   []string{delivered},
		run: func(ctx context.Context, a *attacker) {
			// All at once, when enough of them are there.
			due := fmt.Sprintf(`,"dueAt":%q`, time.Now().Add(largeAfter).UTC().Format(time.RFC3339))
			a.each(ctx, 50*time.Millisecond, 100, func(n int) {
				a.call(ctx, "large", http.MethodPost, fmt.Sprintf("large-%d/schedules", n%largeSources), items("l", n/largeSources%4*25, 25, due+large))
			})
		},
	},
	// Many sources whose sinks hang.
	"hang": {
		sources: numbered("hang", hangingSources, "hang", "limits: {maxInFlight: 4096}"),
		lands:   []string{delivered},
		run: posts("hang", 50*time.Millisecond, 50, func(n int) (below, body string) {
			return fmt.Sprintf("hang-%d/schedules", n%hangingSources), items("h", n/hangingSources%2*500, 500, "")
		}),
	},
	// The same with TLS, and as much memory for each connection as may be.
	"secured": {
		sources: numbered("secured", hangingSources, secured, "limits: {maxInFlight: 4096}"),
		lands:   []string{delivered},
		run: posts("secured", 50*time.Millisecond, 50, func(n int) (below, body string) {
			return fmt.Sprintf("secured-%d/schedules", n%hangingSources), items("s", n/hangingSources%2*500, 500, "")
		}),
	},
	// Keys that are due again as soon as they were delivered.
	"loop": {
		sources: numbered("loop", loopSources, "loop", ""),
		lands:   []string{delivered},
		run: posts("loop", 50*time.Millisecond, loopSources, func(n int) (below, body string) {
			return fmt.Sprintf("loop-%d/schedules", n%loopSources), items("l", 0, 20, "")
		}),
	},
	// Refusals whose body never ends.
	"trickle": {
		sources: []source{{"trickle", "trickle", "limits: {maxInFlight: 4096}"}},
		lands:   []string{delivered},
		run: posts("trickle", 5*time.Second, 10, func(_ int) (below, body string) {
			return "trickle/schedules", items("t", 0, 200, "")
		}),
	},
	// Expressions that cost as much as they may, for a thousand events at once.
	"expression": {
		sources: []source{{"expression", "ok", `ingest: {when: "event.data.a.all(x, event.data.a.all(y, y == x || true))"}`}},
		lands:   []string{"202", "400", "503"},
		run: func(ctx context.Context, a *attacker) {
			numbers := "[" + strings.Repeat("1,", 1999) + "1]"
			events := make([]string, 200)
			for i := range events {
				events[i] = fmt.Sprintf(`{"specversion":"1.0","id":"%d","source":"/a","type":"a","data":{"a":%s}}`, i, numbers)
			}
			batch := "[" + strings.Join(events, ",") + "]"
			a.each(ctx, 500*time.Millisecond, 1000000, func(int) {
				impatient, cancel := context.WithTimeout(ctx, 5*time.Second)
				defer cancel()
				a.call(impatient, "expression", http.MethodPost, "expression", batch, "Content-Type", "application/cloudevents-batch+json")
			})
		},
	},
	// Lists of many large events, which are asked for and not read.
	"lists": {
		sources: []source{{"lists", "ok", ""}},
		lands:   []string{answered},
		run: func(ctx context.Context, a *attacker) {
			a.call(ctx, "lists", http.MethodPost, "lists/schedules", items("k", 0, 32, `,"delay":"24h"`+large))
			a.hold(ctx, "lists", a.URL, connections{n: 40, read: slowly, begin: asks("/" + a.namespace + "/lists/schedules?limit=1000")})
		},
	},
	// Connections on which one request was made, and that stay.
	"idle": {lands: []string{gaveWay}, run: func(ctx context.Context, a *attacker) {
		var both sync.WaitGroup
		for url, path := range map[string]string{a.URL: "/openapi.json", a.Admin: "/healthz"} {
			both.Go(func() {
				ask := asks(path)
				a.hold(ctx, "idle", url, connections{n: idleEach, read: toItsEnd, begin: ask, more: func(conn net.Conn) error {
					if rand.IntN(60) > 0 { // a request a minute keeps it
						return nil
					}
					return ask(conn)
				}})
			})
		}
		both.Wait()
	}},
	// Connections with TLS that stay and ask for nothing.
	"idle-tls": {lands: []string{gaveWay}, run: func(ctx context.Context, a *attacker) {
		a.hold(ctx, "idle-tls", a.TLS, connections{n: idleSecured, read: toItsEnd, begin: func(conn net.Conn) error {
			if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
				return err
			}
			return http2.NewFramer(conn, nil).WriteSettings()
		}})
	}},
	// Streams of live events that are hardly read, and histories, of a source whose keys change.
	"followers": {
		sources: []source{{"followers", "ok", ""}},
		lands:   []string{answered},
		run: func(ctx context.Context, a *attacker) {
			var all sync.WaitGroup
			for _, path := range []string{"events", "schedules/f1/history"} {
				all.Go(func() {
					ask := asks("/" + a.namespace + "/followers/" + path)
					more, read := ask, toItsEnd
					if path == "events" {
						more, read = nil, slowly // the answer does not end
					}
					a.hold(ctx, "followers", a.URL, connections{n: 30, begin: ask, more: more, read: read})
				})
			}
			a.each(ctx, 500*time.Millisecond, 100, func(int) {
				a.call(ctx, "followers", http.MethodPost, "followers/schedules", items("f", 0, 20, ""))
			})
			all.Wait()
		},
	},
	// A thousand sources of all namespaces together, each with a key.
	"thousand": {
		sources: numbered("thousand", manySources, "ok", ""),
		lands:   []string{"200", "201"},
		run: func(ctx context.Context, a *attacker) {
			a.each(ctx, 5*time.Millisecond, manySources, func(n int) {
				a.call(ctx, "thousand", http.MethodPut, fmt.Sprintf("thousand-%d/schedules/k", n%manySources), `{"delay":"1s"}`)
			})
		},
	},
	// Bodies that come a byte at a time: some say how long they are, some do not. They ask to go on, so that an
	// answer says that the adapter reads them.
	"bodies": {
		sources: []source{{"bodies", "ok", ""}},
		lands:   []string{answered},
		run: func(ctx context.Context, a *attacker) {
			var both sync.WaitGroup
			for _, head := range []string{
				"Content-Length: 16777216\r\n\r\n{",
				"Transfer-Encoding: chunked\r\n\r\n11000\r\n{" + strings.Repeat(" ", 69631) + "\r\n",
			} {
				both.Go(func() {
					a.hold(ctx, "bodies", a.URL, connections{n: 12, read: toItsEnd, begin: func(conn net.Conn) error {
						_, err := fmt.Fprintf(conn, "POST /%s/bodies/schedules HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nExpect: 100-continue\r\n%s", a.namespace, head)
						return err
					}, more: func(conn net.Conn) error {
						drip := " "
						if strings.HasPrefix(head, "Transfer") {
							drip = "1\r\n \r\n"
						}
						_, err := io.WriteString(conn, drip)
						return err
					}})
				})
			}
			both.Wait()
		},
	},
	// Requests that announce a body, as many as a connection takes, and none comes.
	"streams": {
		sources: []source{{"streams", "ok", ""}},
		lands:   []string{streamAnswered},
		run: func(ctx context.Context, a *attacker) {
			a.hold(ctx, "streams", a.TLS, connections{n: 50, begin: a.openStreams, read: a.readFrames})
		},
	},
	// Keys as long as may be, in many sources: what is due next is kept in memory.
	"rows": {
		sources: numbered("rows", rowSources, "ok", ""),
		lands:   []string{"200"},
		run: func(ctx context.Context, a *attacker) {
			long := strings.Repeat("k", 500)
			a.each(ctx, 50*time.Millisecond, 4*rowSources, func(n int) {
				a.call(ctx, "rows", http.MethodPost, fmt.Sprintf("rows-%d/schedules", n%rowSources), items(long, n/rowSources%4*1000, 1000, `,"delay":"24h"`))
			})
		},
	},
	// Keys that are far away, as large and as many as the disk holds.
	"fill": {
		sources: []source{{"fill", "ok", ""}},
		lands:   []string{"200", "429", "507"},
		run: posts("fill", 50*time.Millisecond, 200, func(n int) (below, body string) {
			return "fill/schedules", items("f", n%500*8, 8, `,"delay":"24h"`+large)
		}),
	},
}

// What an attack leaves when it has reached the adapter, beside the status of an answer.
const (
	delivered      = "delivered"       // to the sinks of its sources
	answered       = "answered"        // connections on which a byte came back
	gaveWay        = "closed"          // connections that the adapter closed
	streamAnswered = "stream answered" // streams of HTTP/2 that the adapter refused or answered
)

// connections are n connections of an attack. begin writes first, more once a second after
// that unless it is nil, and read reads the answers.
type connections struct {
	n           int
	begin, more func(net.Conn) error
	read        func(context.Context, net.Conn)
}

// hold keeps connections to the URL, and opens each again when it ends.
func (a *attacker) hold(ctx context.Context, attack, url string, c connections) {
	var all sync.WaitGroup
	scheme, address, _ := strings.Cut(url, "://")
	for i := range c.n {
		all.Go(func() {
			// At most 300 a second are opened, and 40 again: the attack is open connections, not opening them.
			pause := time.NewTimer(time.Duration(i) * time.Second / 300)
			defer pause.Stop()
			for {
				select {
				case <-pause.C:
				case <-ctx.Done():
					return
				}
				switch err := a.holdOne(ctx, attack, scheme, address, c); {
				case ctx.Err() != nil:
				case err != nil:
					a.count(attack, "not connected")
				default:
					a.count(attack, gaveWay)
				}
				pause.Reset(time.Duration(1+c.n/40) * time.Second)
			}
		})
	}
	all.Wait()
}

func (a *attacker) holdOne(ctx context.Context, attack, scheme, address string, c connections) error {
	conn, err := a.dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer conn.Close()
	// What is not read fills these, and no more.
	if err := conn.(*net.TCPConn).SetReadBuffer(4 << 10); err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if scheme == "https" {
		secure := tls.Client(conn, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}) //nolint:gosec // an attacker trusts everybody
		if err := secure.HandshakeContext(ctx); err != nil {
			return err
		}
		conn = secure
	}
	if err := c.begin(conn); err != nil {
		return nil // it was open, and is closed: that is counted
	}
	conn = &firstByteConn{Conn: conn, first: func() { a.count(attack, answered) }}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c.read(ctx, conn)
	}()
	for tick := time.Tick(time.Second); ; {
		select {
		case <-ended:
			return nil
		case <-ctx.Done():
			return nil
		case <-tick:
		}
		if c.more != nil && c.more(conn) != nil {
			return nil
		}
	}
}

// firstByteConn calls first when the first byte comes.
type firstByteConn struct {
	net.Conn
	once  sync.Once
	first func()
}

func (c *firstByteConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.once.Do(c.first)
	}
	return n, err
}

// toItsEnd reads all that comes, and throws it away.
func toItsEnd(_ context.Context, conn net.Conn) {
	_, _ = io.Copy(io.Discard, conn) // until its end
}

// slowly reads a kilobyte a second.
func slowly(ctx context.Context, conn net.Conn) {
	for tick := time.Tick(time.Second); ; {
		if _, err := io.CopyN(io.Discard, conn, 1<<10); err != nil {
			return
		}
		select {
		case <-tick:
		case <-ctx.Done():
			return
		}
	}
}

// readFrames counts the streams that end or are answered.
func (a *attacker) readFrames(_ context.Context, conn net.Conn) {
	for framer := http2.NewFramer(nil, conn); ; {
		frame, err := framer.ReadFrame()
		if err != nil {
			return
		}
		switch frame.(type) {
		case *http2.RSTStreamFrame, *http2.HeadersFrame:
			a.count("streams", streamAnswered)
		}
	}
}

// openStreams opens the 250 streams that Go's server allows by itself.
func (a *attacker) openStreams(conn net.Conn) error {
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		return err
	}
	out := bufio.NewWriter(conn)
	framer := http2.NewFramer(out, nil)
	if err := framer.WriteSettings(); err != nil {
		return err
	}
	var block strings.Builder
	encoder := hpack.NewEncoder(&block)
	for stream := range uint32(250) {
		block.Reset()
		for _, field := range [][2]string{
			{":method", "POST"}, {":scheme", "https"}, {":authority", "127.0.0.1"}, {":path", "/" + a.namespace + "/streams/schedules"},
			{"content-type", "application/json"}, {"content-length", "65536"},
		} {
			if err := encoder.WriteField(hpack.HeaderField{Name: field[0], Value: field[1]}); err != nil {
				return err
			}
		}
		if err := framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*stream + 1, BlockFragment: []byte(block.String()), EndHeaders: true}); err != nil {
			return err
		}
	}
	return out.Flush()
}
