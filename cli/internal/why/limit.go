package why

import (
	"fmt"
	"time"
)

// configMap is where the administrator sets the limits that the sources of a namespace share.
const configMap = "ConfigMap config-reschedule"

// limit is a limit of the source, or one that the sources of its namespace share.
type limit struct {
	name      string
	most      int64 // 0 = none, or unknown
	full      bool
	namespace string // that shares it; "" = it is the source's own
}

// binding is the limit that is used up, nil if neither is. A limit of the namespace that is
// as low as the source's own one is the limit to name: its tenant cannot raise it.
func binding(own, shared limit) *limit {
	own.full = own.full && own.most > 0
	switch {
	case shared.most > 0 && (shared.full || own.full && shared.most <= own.most):
		return &shared
	case own.full:
		return &own
	}
	return nil
}

// where is the name of the limit with its place.
func (l *limit) where() string {
	if l.namespace == "" {
		return l.name
	}
	return l.name + " of " + configMap
}

// evidence adds the limit to the evidence.
func (l *limit) evidence(a *answer) { a.number(l.where(), l.most) }

// slots is the limit of deliveries in flight that holds due keys up, nil if none does.
func (f *Facts) slots() *limit {
	own, shared := limit{name: "limits.maxInFlight"}, limit{name: "max-in-flight", namespace: f.Namespace}
	if f.Source != nil && f.Counts != nil {
		own.most = f.Source.MaxInFlight
		own.full = int64(f.Counts.InFlight) >= own.most
	}
	if n := f.NamespaceLimits; n != nil {
		shared.most, shared.full = n.MaxInFlight, n.InFlight >= n.MaxInFlight
	}
	return binding(own, shared)
}

// rate is the limit of deliveries a second that holds due keys up, nil if none does.
func (f *Facts) rate(late time.Duration) *limit {
	own, shared := limit{name: "limits.maxPerSecond"}, limit{name: "max-per-second", namespace: f.Namespace}
	// A second's worth of due keys waits for nothing, unless the rest of them went first.
	exceeds := func(queued, most int64) bool { return queued > most || late >= overdue && queued == most }
	if f.Source != nil && f.Counts != nil {
		own.most = f.Source.MaxPerSecond
		own.full = exceeds(int64(f.Counts.Due-f.Counts.Retrying), own.most)
	}
	if n := f.NamespaceLimits; n != nil {
		shared.most, shared.full = n.MaxPerSecond, exceeds(n.Queued, n.MaxPerSecond)
	}
	return binding(own, shared)
}

// held answers with the limit that holds due keys up, nil if none does: what names the keys
// and rest ends the sentence.
func (f *Facts) held(a *answer, late time.Duration, what, rest string) *answer {
	if l := f.slots(); l != nil {
		l.evidence(a)
		slots := fmt.Sprintf("all %d slots of %s are taken", l.most, l.where())
		if l.most == 1 {
			slots = "the only slot of " + l.where() + " is taken"
		}
		if l.namespace != "" {
			slots += ", which all sources of namespace " + l.namespace + " share"
		}
		return a.say(AtMaxInFlight, late < overdue, "%s because %s%s.", what, slots, rest)
	}
	if l := f.rate(late); l != nil {
		l.evidence(a)
		starts := fmt.Sprintf("%s lets only %s start a second", l.where(), Plural(l.most, "delivery", "deliveries"))
		if l.namespace != "" {
			starts += ", of all sources of namespace " + l.namespace + " together"
		}
		return a.say(AtMaxPerSecond, late < overdue, "%s because %s%s.", what, starts, rest)
	}
	return nil
}

// quota: are changes refused because the source, or its namespace, has as much as it may?
func (f *Facts) quota(a *answer) *answer {
	keys, sharedKeys := limit{name: "limits.maxPending"}, limit{name: "max-pending", namespace: f.Namespace}
	bytes, sharedBytes := limit{name: "limits.maxBytes"}, limit{name: "max-bytes", namespace: f.Namespace}
	held := f.StoredKeys
	if f.Counts != nil {
		held = max(held, int64(f.Counts.Pending))
	}
	// An event that is refused may be a little larger than the rest.
	nearly := func(stored, most int64) bool { return stored >= most/20*19 }
	if s := f.Source; s != nil {
		keys.most, keys.full = s.MaxPending, held >= s.MaxPending
		bytes.most, bytes.full = s.MaxBytes, nearly(f.StoredBytes, s.MaxBytes)
	}
	if n := f.NamespaceLimits; n != nil {
		sharedKeys.most, sharedKeys.full = n.MaxPending, n.Keys >= n.MaxPending
		sharedBytes.most, sharedBytes.full = n.MaxBytes, nearly(n.Bytes, n.MaxBytes)
	}
	has := func(l *limit) string {
		l.evidence(a)
		if l.namespace == "" {
			return fmt.Sprintf("Source %s has reached %s", f.Name, l.where())
		}
		return fmt.Sprintf("The sources of namespace %s have together reached %s", l.namespace, l.where())
	}
	if l := binding(keys, sharedKeys); l != nil {
		return a.say(Quota, false, "%s (%s): new keys are refused with 429.", has(l), Plural(l.most, "key", "keys"))
	}
	if l := binding(bytes, sharedBytes); l != nil {
		stored := f.StoredBytes
		if l.namespace != "" {
			stored = f.NamespaceLimits.Bytes
		}
		text := has(l)
		a.number("stored bytes", stored)
		return a.say(Quota, false, "%s (%d of %d bytes): what grows is refused with 429.", text, stored, l.most)
	}
	return nil
}
