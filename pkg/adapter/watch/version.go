package watch

import (
	"context"

	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/reschedule-dev/reschedule/pkg/adapter/watch/objects"
)

// newer compares versions. Versions that are no numbers are taken as newer: the marks decide then.
func newer(version, than string) bool {
	order, err := resourceversion.CompareResourceVersion(version, than)
	return err != nil || order > 0
}

// standing is what the API server has of a version where a watch would go on.
type standing uint8

const (
	held standing = iota
	// lost: etcd was put back to an older state. The API server opens the watch all the same, and
	// withholds each change up to that version.
	lost
	// uncertain: the API server's versions are no numbers.
	uncertain
)

func standingOf(version, newest string) standing {
	switch order, err := resourceversion.CompareResourceVersion(version, newest); {
	case err == nil && order > 0:
		return lost
	case err != nil && version != newest:
		return uncertain
	}
	return held
}

// lagAsks is how often an older state is seen, over some seconds, before it is taken as restored: one of the servers
// behind an aggregated API may lag for a moment, and is asked again.
const lagAsks = 4

// standing asks the API server about the version of the query. It logs that the version is lost.
func (s *source) standing(ctx context.Context, q objects.Query) (is standing, err error) {
	newest := ""
	for ask := 1; ask <= lagAsks; ask++ {
		if newest, err = s.m.cfg.API.Newest(ctx, s.account(), q); err != nil {
			return held, err
		}
		if is = standingOf(q.Version, newest); is != lost {
			return is, nil
		}
		if ask < lagAsks && !pause(ctx, s.m.backoff(ask)) {
			return held, context.Cause(ctx)
		}
	}
	s.m.cfg.Log.Warn("the API server has an older state than a watch: everything is listed again",
		"source", s.settings.Load().Path(), "resource", q.Resource.Name(), "namespace", q.Namespace, "version", newest, "watched", q.Version)
	return is, nil
}

// check makes the watch list when the API server may have lost its version. The marks prove nothing
// then: a generation may have come again.
func (s *stream) check(ctx context.Context) error {
	is, err := s.r.s.standing(ctx, s.query(s.namespace))
	if err != nil || is == held {
		return err
	}
	if is == lost {
		if err := s.r.keep(s.row(doubted)); err != nil {
			return err
		}
		s.r.s.tally.list(resultOlder)
	}
	s.version = ""
	return nil
}
