package hostile

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// attacker is one namespace's part in an order: it calls from an address of its own, as a pod does.
type attacker struct {
	order
	namespace string
	client    *http.Client
	dialer    *net.Dialer
	w         *runningOrder
}

// assault is one way to harm the others: the sources that it takes, and what is done with them until the context ends.
type assault struct {
	sources []source
	run     func(ctx context.Context, a *attacker)
	lands   []string // what is counted of an attack that reached the adapter: at least one of these
}

// source is a RescheduleSource of an attacker; sink is the way its sink answers.
type source struct{ name, sink, spec string }

func (s source) manifest(namespace, attack string, at addresses) string {
	sink := fmt.Sprintf("uri: %q", at.Plain+"/"+attack+"/"+s.sink)
	if s.sink == secured {
		sink = fmt.Sprintf("uri: %q, CACerts: %q", at.Secured+"/"+attack+"/"+s.sink, at.Authority)
	}
	var text strings.Builder
	fmt.Fprintf(&text, "apiVersion: sources.reschedule.dev/v1alpha1\nkind: RescheduleSource\nmetadata: {name: %s, namespace: %s}\nspec:\n  sink: {%s}\n",
		s.name, namespace, sink)
	for line := range strings.Lines(s.spec) {
		text.WriteString("  " + strings.TrimRight(line, "\n") + "\n")
	}
	return text.String()
}

// begin starts all attacks of the order, one goroutine for each and namespace.
func (w *runningOrder) begin(o order) {
	ctx, cancel := context.WithCancel(context.Background())
	w.sinks.rage()
	w.stop = func() {
		w.sinks.settle()
		cancel()
	}
	for i, namespace := range o.Namespaces {
		dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(1+i))}, Timeout: 10 * time.Second}
		a := &attacker{order: o, namespace: namespace, dialer: dialer, w: w, client: &http.Client{
			Timeout:   30 * time.Second,
			Transport: &http.Transport{DialContext: dialer.DialContext, MaxIdleConnsPerHost: 64},
		}}
		for _, name := range o.Attacks {
			w.all.Go(func() { assaults[name].run(ctx, a) })
		}
	}
}

// end ends what was begun.
func (w *runningOrder) end() {
	if w.stop != nil {
		w.stop()
		w.all.Wait()
		w.stop = nil
	}
}

func (a *attacker) count(attack, what string) {
	a.w.mu.Lock()
	defer a.w.mu.Unlock()
	a.w.answers.add(attack, what, 1)
}

// call makes a call and counts its answer.
func (a *attacker) call(ctx context.Context, attack, method, below, body string, headers ...string) (ok bool) {
	req, err := http.NewRequestWithContext(ctx, method, a.URL+"/"+a.namespace+"/"+below, strings.NewReader(body))
	if err != nil {
		panic(err) // a method or a path of this file's
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := a.client.Do(req)
	if err != nil {
		a.count(attack, "no answer")
		return false
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body) // only its status counts
	a.count(attack, resp.Status[:3])
	return resp.StatusCode < 300
}

// each calls do at a steady pace for all namespaces together, one call at a time: the first calls build the attack up,
// at a tenth of the pace the others keep it.
func (a *attacker) each(ctx context.Context, pace time.Duration, first int, do func(n int)) {
	pace *= time.Duration(len(a.Namespaces))
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for n := 0; ctx.Err() == nil; n++ {
		if n == first {
			tick.Reset(10 * pace)
		}
		do(n)
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// items is a bulk call's body: n keys from the first on.
func items(prefix string, from, n int, rest string) string {
	all := make([]string, 0, n)
	for i := range n {
		all = append(all, fmt.Sprintf(`{"key":"%s%d"%s}`, prefix, from+i, rest))
	}
	return `{"items":[` + strings.Join(all, ",") + `]}`
}

// noise is text that does not compress well, and as long as an event's data may be nearly.
var noise = func() string {
	text, x := make([]byte, 255<<10), uint64(88172645463325252)
	for i := range text {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		text[i] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"[x%64]
	}
	return string(text)
}()

var large = `,"event":{"datacontenttype":"text/plain","data":"` + noise + `"}`
