package api

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// byBrowser says whether a browser sent the request on behalf of a page.
func byBrowser(h http.Header) bool {
	return len(h["Origin"]) > 0 || len(h["Sec-Fetch-Site"]) > 0 || len(h["Sec-Fetch-Mode"]) > 0
}

// checkSameOrigin refuses what a web page of another origin makes a browser on this
// machine send: also under a name of the page's own that leads here.
func checkSameOrigin(r *http.Request) error {
	if r.Host != "" && !local(r.Host) {
		return schedule.Refuse(schedule.CodeDenied,
			"the Host %.100q is no loopback name or address: without --token-file only callers of this machine are served, as localhost or 127.0.0.1", r.Host)
	}
	if slices.Contains(r.Header["Sec-Fetch-Site"], "cross-site") {
		return schedule.Refuse(schedule.CodeDenied, "a page of another site must not call (Sec-Fetch-Site: cross-site): without --token-file anything on this machine may, but no web page")
	}
	for _, origin := range r.Header["Origin"] {
		if u, err := url.Parse(origin); err != nil || !local(u.Host) {
			return schedule.Refuse(schedule.CodeDenied, "a page of the Origin %.100q must not call: without --token-file anything on this machine may, but no web page", origin)
		}
	}
	return nil
}

// local says whether a host, with or without a port, is this machine.
func local(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if strings.EqualFold(strings.TrimSuffix(host, "."), "localhost") { // the dot ends a full name
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}
