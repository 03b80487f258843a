package page

import (
	"crypto/rand"
	"crypto/subtle"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/reschedule-dev/reschedule/pkg/hostname"
)

// guard admits the browser that opened the page with the secret.
type guard struct {
	next   http.Handler
	secret string

	mu      sync.Mutex
	session string // of the browser that used the secret; "" before
}

// Loopback admits one browser to next, which is [Handler]: the address ?secret=… opens the page
// once, and starts a session, which ends with the process. The Host must be a loopback name or
// address, which a page that rebinds its name does not have. Forms of other origins are refused;
// their links come without the cookie of the session.
func Loopback(secret string, next http.Handler) http.Handler {
	return secure(http.NewCrossOriginProtection().Handler(&guard{next: next, secret: secret}))
}

// ServeHTTP implements http.Handler.
func (g *guard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case !hostname.IsLoopback(hostname.Of(r.Host)):
		fail(w, refuse(http.StatusMisdirectedRequest, "The Host %.100q is no loopback name or address. Use the address that was printed.", r.Host))
	case g.open(w, r):
		say(w, http.StatusOK, "Welcome", notice{Link: "Go to the sources", To: "./"})
	case g.admits(r) || slices.Contains(assetNames, strings.TrimPrefix(r.URL.Path, "/")):
		g.next.ServeHTTP(w, r)
	case r.URL.Query().Has("secret"):
		ask(w, http.StatusForbidden, "The address that was printed works once, and it was used.")
	default:
		ask(w, http.StatusUnauthorized, "")
	}
}

func ask(w http.ResponseWriter, status int, wrong string) {
	say(w, status, "Sign in", notice{Class: "bad", Text: wrong, Hint: "Open the address that was printed at the start. It works once; start the command again for another one."})
}

// cookie is the name of the cookie. Cookies are not kept apart by port.
func cookie(r *http.Request) string {
	_, port, _ := net.SplitHostPort(r.Host)
	return "reschedule-page-" + port
}

// admits says whether a request is of the session.
func (g *guard) admits(r *http.Request) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	c, err := r.Cookie(cookie(r))
	return err == nil && g.session != "" && subtle.ConstantTimeCompare([]byte(c.Value), []byte(g.session)) == 1
}

// open takes the secret of the printed address, which works once, and leads the browser to the
// page. A redirect would not do: when another page linked here, browsers would not send a strict
// cookie after it.
func (g *guard) open(w http.ResponseWriter, r *http.Request) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.session != "" || r.Method != http.MethodGet || subtle.ConstantTimeCompare([]byte(r.URL.Query().Get("secret")), []byte(g.secret)) != 1 {
		return false
	}
	g.session = rand.Text()
	http.SetCookie(w, &http.Cookie{Name: cookie(r), Value: g.session, Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode})
	w.Header().Set("Refresh", "0; url=./")
	return true
}
