package page

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"embed"
	"errors"
	"net/http"
	"net/url"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/why"
)

//go:embed assets/style.css assets/page.js assets/icon.svg
var assets embed.FS

const (
	// formBytes bounds the body of a POST: a key of 512 bytes is three times as long there.
	formBytes = 16 << 10
	// viewsAtOnce bounds how many views are made at one time, and with them what they hold.
	viewsAtOnce = 16
	viewWait    = 5 * time.Second
	// A listener may give an answer 10 s; a change of many keys takes longer.
	viewTime   = 9 * time.Second
	changeTime = 2 * time.Minute
)

// policy lets the page load its own files and nothing else.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"

type handler struct {
	Backend
	client http.Client
	views  chan struct{} // slots
	// proof is in each form of this process: another page cannot know it.
	proof   string
	origins *http.CrossOriginProtection
}

// view is a page that is made.
type view struct {
	title  string
	crumbs []crumb
	body   markup
	// live views are made again while they are looked at.
	live bool
}

// crumb is a link to the view above.
type crumb struct {
	name markup
	href string
}

// Handler returns the page. It has no authentication: put it behind [Loopback]. All its
// addresses are relative to the directory that it serves.
func Handler(b Backend) http.Handler {
	if b.Now == nil {
		b.Now = time.Now
	}
	if b.Members == nil {
		b.Members = func(context.Context) why.Group { return nil }
	}
	if b.Metrics == nil {
		b.Metrics = func(context.Context, string, string) *why.Metrics { return nil }
	}
	h := &handler{
		Backend: b, views: make(chan struct{}, viewsAtOnce), proof: rand.Text(), origins: http.NewCrossOriginProtection(),
		client: http.Client{Transport: b.Transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
	}
	mux := http.NewServeMux()
	for pattern, view := range map[string]func(*http.Request) (*view, error){
		"GET /{$}": h.sourcesView, "GET /source": h.sourceView, "GET /key": h.keyView,
		"GET /letter": h.letterView, "GET /live": h.liveView, "GET /confirm": h.confirmView,
	} {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) { h.serveView(w, r, view) })
	}
	for pattern, change := range changes {
		mux.HandleFunc("POST /"+pattern, func(w http.ResponseWriter, r *http.Request) { h.serveChange(w, r, change) })
	}
	mux.HandleFunc("GET /events", h.serveEvents)
	mux.HandleFunc("GET /style.css", serveAsset)
	mux.HandleFunc("GET /page.js", serveAsset)
	mux.HandleFunc("GET /icon.svg", serveAsset)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fail(w, refuse(http.StatusNotFound, "There is no such page."))
	})
	return secure(mux)
}

// secure sets the headers that each answer has.
func secure(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		// Keys are in the query. With no-referrer browsers would send no Origin.
		h.Set("Referrer-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		next.ServeHTTP(w, r)
	})
}

// serveAsset sends a file of the page. Only routes that name a file come here.
func serveAsset(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "max-age=300")
	http.ServeFileFS(w, r, assets, "assets"+r.URL.Path)
}

// serveView makes a view and sends it.
func (h *handler) serveView(w http.ResponseWriter, r *http.Request, make func(*http.Request) (*view, error)) {
	ctx, cancel := context.WithTimeout(r.Context(), viewTime)
	defer cancel()
	wait := time.NewTimer(viewWait)
	defer wait.Stop()
	select {
	case h.views <- struct{}{}:
		defer func() { <-h.views }()
	case <-wait.C:
		fail(w, refuse(http.StatusServiceUnavailable, "Too many pages are being made at once. Try again in a moment."))
		return
	case <-ctx.Done():
		return
	}
	v, err := make(r.WithContext(ctx))
	if err != nil {
		fail(w, err)
		return
	}
	h.send(w, http.StatusOK, v)
}

func (h *handler) send(w http.ResponseWriter, status int, v *view) { frame(w, status, v, h.Now()) }

// fail sends what went wrong.
func fail(w http.ResponseWriter, err error) {
	p := &problem{Status: http.StatusInternalServerError, Detail: err.Error()}
	errors.As(err, &p)
	head, hint := "That did not work", markup("")
	switch p.Status {
	case http.StatusNotFound:
		head = "Not found"
	case http.StatusUnauthorized:
		head, hint = "The schedule API does not know you", `<p><a class="button" href="login">Sign in again</a></p>`
	case http.StatusForbidden:
		head = "Not allowed"
	case http.StatusPreconditionFailed:
		head, p.Detail = "The key has changed", "It is not as this page showed it any more, so nothing was done. Go back and look at it again."
	case http.StatusBadGateway, http.StatusServiceUnavailable:
		head = "Not available"
	}
	frame(w, p.Status, &view{title: head, body: write(`<section class="notice"><h1>%s</h1><p>%s</p>%s<p><a href="./">All sources</a></p></section>`, head, text(p.Detail), hint)}, time.Now())
}

// frame sends a view with what all views have.
func frame(w http.ResponseWriter, status int, v *view, now time.Time) {
	var crumbs []markup
	for _, c := range v.crumbs {
		crumbs = append(crumbs, write(`<li><a href="%s">%s</a></li>`, c.href, c.name))
	}
	page := write(`<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>%s · Reschedule</title>
<link rel="stylesheet" href="style.css">
<link rel="icon" href="icon.svg" type="image/svg+xml">
<script type="module" src="page.js"></script>
</head>
<body%s>
<a class="skip" href="#main">Skip to the content</a>
<header class="top">
<a class="brand" href="./"><img src="icon.svg" alt="" width="22" height="22">Reschedule</a>
<nav aria-label="Breadcrumb"><ol>%s</ol></nav>
<span class="asof">as of <time datetime="%s">%s UTC</time></span>
</header>
<main id="main" tabindex="-1">
%s
</main>
</body>
</html>
`, plain(v.title), when(v.live, ` data-refresh="5"`), join(crumbs), now.UTC().Format(time.RFC3339), now.UTC().Format("15:04:05"), v.body)
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(page))
}

// serveChange makes a change and leads the browser to the view that shows it.
func (h *handler) serveChange(w http.ResponseWriter, r *http.Request, change func(*handler, *http.Request, *Source) (string, error)) {
	ctx, cancel := context.WithTimeout(r.Context(), changeTime)
	defer cancel()
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(changeTime)) // HTTP always can
	r = r.WithContext(ctx)
	r.Body = http.MaxBytesReader(w, r.Body, formBytes)
	if err := h.mayChange(r); err != nil {
		fail(w, err)
		return
	}
	src, err := h.source(r)
	if err != nil {
		fail(w, err)
		return
	}
	next, err := change(h, r, src)
	if err != nil {
		fail(w, err)
		return
	}
	w.Header().Set("Location", next)
	w.WriteHeader(http.StatusSeeOther)
}

// mayChange refuses a form that is not of this page.
func (h *handler) mayChange(r *http.Request) error {
	if err := h.origins.Check(r); err != nil {
		return refuse(http.StatusForbidden, "Another page sent this form.")
	}
	if err := r.ParseForm(); err != nil {
		return refuse(http.StatusBadRequest, "The form cannot be read.")
	}
	if r.PostForm.Get("proof") == "" || subtle.ConstantTimeCompare([]byte(r.PostForm.Get("proof")), []byte(h.proof)) != 1 {
		return refuse(http.StatusForbidden, "This form is older than the process that serves the page. Go back, load the page again, and repeat it.")
	}
	r.Form = r.PostForm // the query must not change what a form says
	return nil
}

// form is a button that makes a change.
func (h *handler) form(s *Source, action constant, label, about markup, class constant, fields ...string) markup {
	return write(`<form method="post" action="%s">%s<button class="%s" type="submit">%s<span class="unseen"> %s</span></button></form>`,
		string(action), hidden(append([]string{"proof", h.proof, "ns", s.Namespace, "name", s.Name}, fields...)...), string(class), label, about)
}

// of are the query pairs of a source.
func of(s *Source, more ...string) []string {
	return append([]string{"ns", s.Namespace, "name", s.Name}, more...)
}

func query(pairs ...string) url.Values {
	q := url.Values{}
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			q.Set(pairs[i], pairs[i+1])
		}
	}
	return q
}
