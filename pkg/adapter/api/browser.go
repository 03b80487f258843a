package api

import (
	"net/http"
	"net/url"
	"slices"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/hostname"
)

// byBrowser says whether a browser sent the request on behalf of a page.
func byBrowser(h http.Header) bool {
	return len(h["Origin"]) > 0 || len(h["Sec-Fetch-Site"]) > 0 || len(h["Sec-Fetch-Mode"]) > 0
}

// checkSameOrigin refuses what a web page of another origin makes a browser on this
// machine send: also under a name of the page's own that leads here.
func checkSameOrigin(r *http.Request) error {
	if r.Host != "" && !hostname.IsLoopback(hostname.Of(r.Host)) {
		return schedule.Refuse(schedule.CodeDenied,
			"the Host %.100q is no loopback name or address: without --token-file only callers of this machine are served, as localhost or 127.0.0.1", r.Host)
	}
	if slices.Contains(r.Header["Sec-Fetch-Site"], "cross-site") {
		return schedule.Refuse(schedule.CodeDenied, "a page of another site must not call (Sec-Fetch-Site: cross-site): without --token-file anything on this machine may, but no web page")
	}
	for _, origin := range r.Header["Origin"] {
		if u, err := url.Parse(origin); err != nil || !hostname.IsLoopback(u.Hostname()) {
			return schedule.Refuse(schedule.CodeDenied, "a page of the Origin %.100q must not call: without --token-file anything on this machine may, but no web page", origin)
		}
	}
	return nil
}
