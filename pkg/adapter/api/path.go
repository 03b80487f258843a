package api

import (
	"net/url"
	"strings"
)

type pathKind uint8

const (
	pathUnknown    pathKind = iota
	pathOpenAPI             // /openapi.json
	pathSource              // /namespace/name, also with a slash at the end
	pathSchedules           // /namespace/name/schedules
	pathKey                 // /namespace/name/schedules/key
	pathRun                 // /namespace/name/schedules/key/run
	pathHistory             // /namespace/name/schedules/key/history
	pathEvents              // /namespace/name/events
	pathLetters             // /namespace/name/deadletters
	pathLetter              // /namespace/name/deadletters/key
	pathRedriveAll          // /namespace/name/deadletters/redrive
	pathResync              // /namespace/name/resync
	pathRedrive             // /namespace/name/deadletters/key/redrive
)

// path is where a request goes, its segments decoded.
type path struct {
	kind                 pathKind
	namespace, name, key string
}

// SourceOf are the namespace and the name of the source that a request is about, "": none.
func SourceOf(u *url.URL) (namespace, name string) {
	p := splitPath(u)
	return p.namespace, p.name
}

// splitPath splits on the slashes that were sent as slashes. Nothing is
// cleaned: "..", "." and "" are segments like any other.
//
// A URL has a RawPath when the path was sent otherwise than Go would encode
// it, so always when it has a %2F; without one the decoded path has its
// slashes where the sent one had them. EscapedPath is of no use here: it falls
// back to encoding Path anew, %2F lost, when RawPath has a character that
// should have been encoded.
func splitPath(u *url.URL) path {
	raw, encoded := u.Path, false
	if u.RawPath != "" {
		raw, encoded = u.RawPath, true
	}
	rest, ok := strings.CutPrefix(raw, "/")
	if !ok {
		return path{}
	}
	var segments [5]string
	n := 0
	for more := true; more; n++ {
		if n == len(segments) {
			return path{}
		}
		segments[n], rest, more = strings.Cut(rest, "/")
		if encoded {
			s, err := url.PathUnescape(segments[n])
			if err != nil { // the server has parsed the whole path, so it cannot be
				return path{}
			}
			segments[n] = s
		}
	}
	p := path{namespace: segments[0], name: segments[1], key: segments[3]}
	switch {
	case n == 1 && segments[0] == "openapi.json":
		p.kind = pathOpenAPI
	case n == 2, n == 3 && segments[2] == "": // clients and routes add a slash to an address
		p.kind = pathSource
	case n >= 3:
		p.kind = kindOf(segments[2], segments[4], n)
	}
	switch {
	case p.kind == pathUnknown:
		return path{}
	case p.kind == pathLetter && p.key == "redrive": // also a key; the method decides
		p.kind = pathRedriveAll
	}
	return p
}

// kindOf is the kind of a path of n segments below a source's: what, key, call.
func kindOf(what, call string, n int) pathKind {
	switch {
	case what == "schedules" && n == 3:
		return pathSchedules
	case what == "schedules" && n == 4:
		return pathKey
	case what == "schedules" && call == "run":
		return pathRun
	case what == "schedules" && call == "history":
		return pathHistory
	case what == "resync" && n == 3:
		return pathResync
	case what == "events" && n == 3:
		return pathEvents
	case what == "deadletters" && n == 3:
		return pathLetters
	case what == "deadletters" && n == 4:
		return pathLetter
	case what == "deadletters" && call == "redrive":
		return pathRedrive
	}
	return pathUnknown
}
