package page

import (
	"bytes"
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"net/http"
	"sync"
	"time"

	"github.com/reschedule-dev/reschedule/cli/internal/why"
	"github.com/reschedule-dev/reschedule/sdk"
)

//go:embed assets views
var files embed.FS

const (
	viewTime = 9 * time.Second
	// A change may be of many keys.
	changeTime = 2 * time.Minute
)

// policy lets the page load its own files and nothing else.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"

// Source is a RescheduleSource that the page shows, with what is known of its object.
type Source struct {
	Namespace, Name string
	why.Source
	// Target is how to ask about it.
	Target func(context.Context) *why.Target
}

// Backend is how the page reaches sources and adapters.
type Backend interface {
	// Sources lists the sources that the user may see, in any order.
	Sources(context.Context) ([]Source, error)
	// Members asks the adapters of a replicated group; nil: there is only one adapter.
	Members(context.Context) why.Group
}

type handler struct {
	Backend
	now func() time.Time
}

// view is a page that is made: what the layout shows, and what the template of its name does.
type view struct {
	name   string
	Title  string
	Crumbs []crumb
	Live   bool // it is made again while it is looked at
	Now    time.Time
	Source *Source // nil: it is about no source
	Body   any
}

// crumb is a link to the view above.
type crumb struct{ Name, Href string }

// views are the templates, by the names of the views.
var views = sync.OnceValue(func() map[string]*template.Template {
	layout := template.Must(template.New("layout.html").Funcs(functions).ParseFS(files, "views/layout.html", "views/parts.html"))
	all := map[string]*template.Template{}
	for _, name := range []string{"sources", "source", "key", "letter", "live", "confirm", "silent", "notice"} {
		all[name] = template.Must(template.Must(layout.Clone()).ParseFS(files, "views/"+name+".html"))
	}
	return all
})

// Handler returns the page. It has no authentication: put it behind [Loopback]. All its
// addresses are relative to the directory that it serves.
func Handler(b Backend, now func() time.Time) http.Handler {
	h := &handler{b, now}
	mux := http.NewServeMux()
	for pattern, view := range map[string]func(*http.Request) (*view, error){
		"GET /{$}": h.sources, "GET /source": h.source, "GET /key": h.key, "GET /letter": h.letter, "GET /live": h.live, "GET /confirm": h.confirm,
	} {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) { h.show(w, r, view) })
	}
	for action, change := range changes {
		mux.HandleFunc("POST /"+action, func(w http.ResponseWriter, r *http.Request) { h.change(w, r, change) })
	}
	mux.HandleFunc("GET /events", h.events)
	assets, err := fs.Sub(files, "assets")
	if err != nil {
		panic(err) // they are in the program
	}
	for _, name := range assetNames {
		mux.Handle("GET /"+name, http.FileServerFS(assets))
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		fail(w, refuse(http.StatusNotFound, "There is no such page."))
	})
	return secure(mux)
}

var assetNames = []string{"style.css", "page.js", "icon.svg"}

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

// show makes a view and sends it.
func (h *handler) show(w http.ResponseWriter, r *http.Request, make func(*http.Request) (*view, error)) {
	ctx, cancel := context.WithTimeout(r.Context(), viewTime)
	defer cancel()
	v, err := make(r.WithContext(ctx))
	if err != nil {
		fail(w, err)
		return
	}
	v.Now = h.now()
	send(w, http.StatusOK, v)
}

func send(w http.ResponseWriter, status int, v *view) {
	var page bytes.Buffer
	if err := views()[v.name].Execute(&page, v); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = page.WriteTo(w)
}

// notice is a view of a few words.
type notice struct {
	Class, Text string // of a banner, "" without one
	Hint        string
	Link, To    string // where to go on
}

func say(w http.ResponseWriter, status int, title string, n notice) {
	send(w, status, &view{name: "notice", Title: title, Now: time.Now(), Body: n})
}

// problem is an error of the page itself.
type problem struct {
	status int
	detail string
}

func (p *problem) Error() string { return p.detail }

func refuse(status int, format string, values ...any) error {
	return &problem{status, fmt.Sprintf(format, values...)}
}

// fail sends what went wrong.
func fail(w http.ResponseWriter, err error) {
	p, own := errors.AsType[*problem](err)
	if !own {
		r := why.NewRefusal(err)
		p = &problem{cmp.Or(r.Status, http.StatusBadGateway), r.Detail}
	}
	head := "That did not work"
	switch p.status {
	case http.StatusNotFound:
		head = "Not found"
	case http.StatusUnauthorized, http.StatusForbidden:
		head = "Not allowed"
	case http.StatusPreconditionFailed:
		head, p.detail = "The key has changed", "It is not as this page showed it any more, so nothing was done. Go back and look at it again."
	case http.StatusBadGateway, http.StatusServiceUnavailable:
		head = "Not available"
	}
	say(w, p.status, head, notice{Hint: p.detail, Link: "All sources", To: "./"})
}

// find finds the source that a request names, and how to ask about it.
func (h *handler) find(r *http.Request) (*Source, *why.Target, error) {
	ns, name := r.FormValue("ns"), r.FormValue("name")
	all, err := h.Sources(r.Context())
	if err != nil {
		return nil, nil, err
	}
	for i := range all {
		if s := &all[i]; s.Namespace == ns && s.Name == name {
			return s, s.Target(r.Context()), nil
		}
	}
	return nil, nil, refuse(http.StatusNotFound, "There is no source %.64q in namespace %.64q. It may have been deleted.", name, ns)
}

// call finds the source that a request names, and the client of its schedule API.
func (h *handler) call(r *http.Request) (*Source, *sdk.Client, error) {
	s, t, err := h.find(r)
	switch {
	case err != nil:
		return nil, nil, err
	case t.Client == nil && t.Err == nil:
		return nil, nil, refuse(http.StatusServiceUnavailable, "No pod of the adapter is ready.")
	}
	return s, t.Client, t.Err
}

// silent is the view of a source about which the schedule API says nothing.
func silent(s *Source, f *why.Facts) *view {
	return &view{name: "silent", Title: s.Namespace + "/" + s.Name, Crumbs: top, Live: true, Source: s, Body: why.Explain(*f)}
}

// validKey reads the key of a request.
func validKey(r *http.Request) (string, error) {
	k := r.FormValue("key")
	if k == "" || len(k) > 512 {
		return "", refuse(http.StatusBadRequest, "key: it must have 1 to 512 bytes")
	}
	return k, nil
}

// top leads to all sources.
var top = []crumb{{"Sources", "./"}}

func above(s *Source) []crumb {
	return []crumb{{s.Namespace + "/" + s.Name, href("source", s)}}
}
