package page

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/hostname"
)

// Guard is who may use a page on a loopback address. The zero value admits every caller of
// this machine who is no foreign web page.
type Guard struct {
	// Secret opens the page once: the address ?secret=… starts a session. "": no session
	// is needed, unless Token is set.
	Secret string
	// Bearer is the token of the calls in a session that the secret started; "": the
	// transport of the backend authenticates the calls by itself.
	Bearer string
	// Token judges the token that a user enters to start a session; nil: the secret is
	// the only way. The calls of that session carry the token, and the session ends when
	// the token is not accepted any more.
	Token func(ctx context.Context, token string) bool
}

const (
	// maxSessions bounds the sessions; the oldest one ends for a new one.
	maxSessions = 64
	sessionAge  = 12 * time.Hour
)

// guard is Guard at work.
type guard struct {
	Guard
	next    http.Handler
	origins *http.CrossOriginProtection

	mu       sync.Mutex
	secret   string // "" once it was used
	sessions []session
}

// session is what a cookie stands for. Its token never leaves the process.
type session struct {
	id, token string
	since     time.Time
}

// Loopback admits callers to next, which is [Handler]: the Host must be a loopback name or
// address, which a page that rebinds its name does not have, and no other page may call. It
// keeps a cookie for each session, and gives the session's token to the calls.
func Loopback(g Guard, next http.Handler) http.Handler {
	return secure(&guard{Guard: g, next: next, secret: g.Secret, origins: http.NewCrossOriginProtection()})
}

// ServeHTTP implements http.Handler.
func (g *guard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !hostname.IsLoopback(hostname.Of(r.Host)) {
		fail(w, refuse(http.StatusMisdirectedRequest, "The Host %.100q is no loopback name or address. Use the address that was printed.", r.Host))
		return
	}
	if foreign(r) {
		fail(w, refuse(http.StatusForbidden, "Another page sent this request."))
		return
	}
	file := strings.TrimPrefix(r.URL.Path, "/")
	switch {
	case file == "style.css" || file == "icon.svg" || file == "page.js" || g.Secret == "" && g.Token == nil:
		g.next.ServeHTTP(w, r)
	case r.Method == http.MethodPost && file == "login":
		g.login(w, r)
	case r.Method == http.MethodGet && r.URL.Query().Has("secret"):
		g.open(w, r)
	default:
		s, ok := g.session(r)
		if !ok || file == "login" {
			g.ask(w, http.StatusUnauthorized, "")
			return
		}
		if s.token != g.Bearer && g.Token != nil && !g.Token(r.Context(), s.token) {
			g.end(s.id)
			g.ask(w, http.StatusUnauthorized, "The schedule API does not know the token of this session any more.")
			return
		}
		if s.token != "" {
			r = r.WithContext(context.WithValue(r.Context(), bearer{}, s.token))
		}
		g.next.ServeHTTP(w, r)
	}
}

// foreign says whether another page made the browser send the request. It may link here,
// and no more.
func foreign(r *http.Request) bool {
	for _, origin := range r.Header["Origin"] {
		if u, err := url.Parse(origin); err != nil || !strings.EqualFold(u.Host, r.Host) {
			return true
		}
	}
	for _, site := range r.Header["Sec-Fetch-Site"] {
		link := r.Method == http.MethodGet && r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document"
		if site != "same-origin" && site != "none" && !link {
			return true
		}
	}
	return false
}

// cookie is the name of the cookie. Cookies are not kept apart by port.
func cookie(r *http.Request) string {
	_, port, _ := net.SplitHostPort(r.Host)
	return "reschedule-page-" + port
}

// session returns the session of a request.
func (g *guard) session(r *http.Request) (session, bool) {
	c, err := r.Cookie(cookie(r))
	if err != nil {
		return session{}, false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, s := range g.sessions {
		if subtle.ConstantTimeCompare([]byte(s.id), []byte(c.Value)) == 1 && time.Since(s.since) < sessionAge {
			return s, true
		}
	}
	return session{}, false
}

// end ends a session.
func (g *guard) end(id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.sessions = slices.DeleteFunc(g.sessions, func(s session) bool { return s.id == id })
}

// start starts a session and leads the browser to the page. A redirect would not do: when
// another page linked here, browsers would not send a strict cookie after it.
func (g *guard) start(w http.ResponseWriter, r *http.Request, token string) {
	s := session{rand.Text(), token, time.Now()}
	g.mu.Lock()
	g.sessions = append(g.sessions, s)
	if len(g.sessions) > maxSessions {
		g.sessions = g.sessions[1:]
	}
	g.mu.Unlock()
	http.SetCookie(w, &http.Cookie{Name: cookie(r), Value: s.id, Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode, MaxAge: int(sessionAge / time.Second)})
	w.Header().Set("Refresh", "0; url=./")
	frame(w, http.StatusOK, &view{title: "Welcome", body: `<section class="notice"><h1>Welcome</h1><p><a class="button primary" href="./">Go to the sources</a></p></section>`}, time.Now())
}

// open takes the secret of the printed address, which works once.
func (g *guard) open(w http.ResponseWriter, r *http.Request) {
	given := r.URL.Query().Get("secret")
	g.mu.Lock()
	right := g.secret != "" && subtle.ConstantTimeCompare([]byte(given), []byte(g.secret)) == 1
	if right {
		g.secret = ""
	}
	g.mu.Unlock()
	if right {
		g.start(w, r, g.Bearer)
		return
	}
	if s, ok := g.session(r); ok { // the browser loads the address again
		_ = s
		w.Header().Set("Location", "./")
		w.WriteHeader(http.StatusSeeOther)
		return
	}
	g.ask(w, http.StatusForbidden, "The address that was printed works once, and it was used.")
}

// ask asks for what starts a session.
func (g *guard) ask(w http.ResponseWriter, status int, wrong string) {
	body := markup(`<p>Open the address that was printed at the start. It works once; start the command again for another one.</p>`)
	if g.Token != nil {
		body = `<p>Enter a bearer token of the schedule API, or open the address that the adapter printed at its start. The address works once.</p>
<form method="post" action="login" class="login"><label for="token">Token</label><input id="token" name="token" type="password" required autocomplete="off" maxlength="4096"><button class="primary" type="submit">Sign in</button></form>`
	}
	frame(w, status, &view{title: "Sign in", body: write(`<section class="notice"><h1>Sign in</h1>%s%s</section>`, when(wrong != "", write(`<p class="banner bad" role="alert">%s</p>`, wrong)), body)}, time.Now())
}

// login takes a token.
func (g *guard) login(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, formBytes)
	if g.Token == nil || g.origins.Check(r) != nil || r.ParseForm() != nil {
		fail(w, refuse(http.StatusForbidden, "Another page sent this form, or this page takes no token."))
		return
	}
	if token := strings.TrimSpace(r.PostForm.Get("token")); g.Token(r.Context(), token) {
		g.start(w, r, token)
		return
	}
	g.ask(w, http.StatusUnauthorized, "The schedule API does not know this token.")
}
