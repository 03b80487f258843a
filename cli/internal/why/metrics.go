package why

import (
	"bufio"
	"io"
	"iter"
	"strconv"
	"strings"
	"time"
)

// Metrics is what the metrics of one adapter say: about its disk, about each of its sources
// and their namespaces, and about the group that it belongs to.
type Metrics struct {
	free, reserve float64
	paused        bool // no delivery starts for want of space
	unreadable    int64
	sources       map[sourceName]*measured
	ceilings      map[string]map[string]int64 // by namespace and limit
	grouped       bool                        // it belongs to a group
	member        Member
}

type sourceName struct{ namespace, name string }

// measured is what the metrics say of a source.
type measured struct {
	gauges        map[string]float64 // by metric
	refused       map[string]int64   // by quota
	suspended     *bool
	limits        map[string]int64
	keys, letters map[string]int64     // deliveries by result
	gaveUp        map[string]time.Time // the last time by result
}

// The gauges of a source that are read.
const (
	storedKeys      = "reschedule_stored_keys"
	storedBytes     = "reschedule_stored_bytes"
	watchBytes      = "reschedule_watch_stored_bytes" // count in the namespace alone
	dueKeys         = "reschedule_due"
	retryingKeys    = "reschedule_retrying"
	keysInFlight    = "reschedule_in_flight"
	lettersInFlight = "reschedule_dead_letters_in_flight"
	lettersPending  = "reschedule_dead_letters_pending"
)

// ReadMetrics reads the metrics of an adapter. What they do not show stays unknown.
func ReadMetrics(text io.Reader) *Metrics {
	m := &Metrics{sources: map[sourceName]*measured{}, ceilings: map[string]map[string]int64{}}
	for s := range samples(text) {
		switch s.name {
		case "reschedule_storage_free_bytes":
			m.free = s.value
		case "reschedule_storage_reserve_bytes":
			m.reserve = s.value
		case "reschedule_deliveries_paused":
			m.paused = s.value > 0
		case "reschedule_storage_corrupt_total":
			m.unreadable = int64(s.value)
		case storedKeys, storedBytes, watchBytes, dueKeys, retryingKeys, keysInFlight, lettersInFlight, lettersPending:
			m.of(s).gauges[s.name] = s.value
		case "reschedule_deliveries_total":
			m.of(s).keys[s.labels["result"]] = int64(s.value)
		case "reschedule_dead_letter_deliveries_total":
			m.of(s).letters[s.labels["result"]] = int64(s.value)
		case "reschedule_given_up_timestamp_seconds":
			m.of(s).gaveUp[s.labels["result"]] = time.UnixMilli(int64(s.value * 1000))
		case "reschedule_namespace_limit":
			namespace := s.labels["kn_source_namespace"]
			if m.ceilings[namespace] == nil {
				m.ceilings[namespace] = map[string]int64{}
			}
			m.ceilings[namespace][s.labels["limit"]] = int64(s.value)
		case "reschedule_source_suspended":
			m.of(s).suspended = new(s.value > 0)
		case "reschedule_limit":
			m.of(s).limits[s.labels["limit"]] = int64(s.value)
		case "reschedule_quota_refused_total":
			m.of(s).refused[s.labels["quota"]] += int64(s.value)
		case "reschedule_group_owner":
			m.grouped, m.member.Owner = true, s.value > 0
		case "reschedule_group_majority":
			m.member.Majority = s.value > 0
		case "reschedule_group_applied":
			m.member.Applied = int64(s.value)
		case "reschedule_group_behind_seconds":
			m.member.Behind = time.Duration(s.value * float64(time.Second)).Round(10 * time.Millisecond)
		}
	}
	return m
}

func (m *Metrics) of(s sample) *measured {
	name := sourceName{s.labels["kn_source_namespace"], s.labels["kn_source_name"]}
	if m.sources[name] == nil {
		m.sources[name] = &measured{
			gauges: map[string]float64{}, refused: map[string]int64{}, limits: map[string]int64{},
			keys: map[string]int64{}, letters: map[string]int64{}, gaveUp: map[string]time.Time{},
		}
	}
	return m.sources[name]
}

// Sources are the namespaces and names of all sources of the adapter, in no order.
func (m *Metrics) Sources() iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for name, s := range m.sources {
			if s.suspended != nil && !yield(name.namespace, name.name) {
				return
			}
		}
	}
}

// Source is what the metrics say of a source whose object is unknown, nil if they do not
// know it: whether it is suspended, and its limits.
func (m *Metrics) Source(namespace, name string) *Source {
	if m == nil || m.sources[sourceName{namespace, name}] == nil || m.sources[sourceName{namespace, name}].suspended == nil {
		return nil
	}
	s := m.sources[sourceName{namespace, name}]
	known := &Source{Suspended: *s.suspended}
	s.limit(known)
	return known
}

// limit sets the limits in force, which may be lower than the limits in the object.
func (s *measured) limit(known *Source) {
	for name, limit := range map[string]*int64{
		"limits.maxPending": &known.MaxPending, "limits.maxBytes": &known.MaxBytes, "limits.maxInFlight": &known.MaxInFlight, "limits.maxPerSecond": &known.MaxPerSecond,
	} {
		if inForce, ok := s.limits[name]; ok {
			*limit = inForce
		}
	}
}

// namespaceLimits are what the metrics say of a namespace, whether they say what quotas count, and
// how many changes of its sources were refused for the disk.
func (m *Metrics) namespaceLimits(namespace string) (n NamespaceLimits, counted bool, refused int64) {
	limits := m.ceilings[namespace]
	n = NamespaceLimits{MaxPending: limits["max-pending"], MaxBytes: limits["max-bytes"], MaxInFlight: limits["max-in-flight"], MaxPerSecond: limits["max-per-second"]}
	for name, s := range m.sources {
		if name.namespace != namespace {
			continue
		}
		refused += s.refused["disk"]
		keys, known := s.gauges[storedKeys]
		counted = counted || known
		n.Keys += int64(keys)
		n.Bytes += int64(s.gauges[storedBytes] + s.gauges[watchBytes])
		n.InFlight += int64(s.gauges[keysInFlight] + s.gauges[lettersInFlight])
		if s.suspended == nil || !*s.suspended {
			n.Queued += int64(s.gauges[dueKeys] - s.gauges[retryingKeys])
		}
	}
	return n, counted, refused
}

// Measure adds what only the metrics of the adapter show: a full disk, refusals, unreadable
// records, the limits in force, what the sources of the namespace share, events that were
// given up, and whether a source without an object is suspended. The source of the facts
// must not be shared. After an error, and of metrics of a member of a group that does not
// deliver the source's keys, all this is unknown.
func (f *Facts) Measure(m *Metrics, err error) {
	switch {
	case err != nil:
		f.Unmeasured = err.Error()
		return
	case m.grouped && m.sources[sourceName{f.Namespace, f.Name}] == nil:
		f.Unmeasured = "the metrics are of an adapter that does not deliver the source's keys"
		return
	}
	if f.Source == nil {
		f.Source = m.Source(f.Namespace, f.Name)
	}
	namespaceLimits, counted, refused := m.namespaceLimits(f.Namespace)
	f.NamespaceLimits = &namespaceLimits
	if !counted {
		f.NamespaceLimits = nil
	}
	if s := m.sources[sourceName{f.Namespace, f.Name}]; s != nil {
		f.StoredKeys, f.StoredBytes, f.QuotaRefused = int64(s.gauges[storedKeys]), int64(s.gauges[storedBytes]), s.refused
		f.Lost = Lost{
			Dropped: s.keys["dropped"] + s.letters["dropped"], DroppedAt: s.gaveUp["dropped"],
			DeadLettered: s.keys["dead_lettered"], DeadLetteredAt: s.gaveUp["dead_lettered"],
			Waiting: int64(s.gauges[lettersPending]), Refused: s.letters["retrying"] + s.letters["kept"] + s.letters["dropped"],
		}
		if f.Source != nil {
			s.limit(f.Source)
		}
	}
	f.Unreadable, f.Paused = m.unreadable, m.paused
	// A namespace that holds little may use a part of what is kept back.
	spared := counted && float64(namespaceLimits.Bytes) <= m.reserve/64 && m.free >= m.reserve/2
	f.StorageFull = m.reserve > 0 && m.free < m.reserve && !spared
	// The adapter shares a disk that is nearly full in this way; see docs/capacity.md. The
	// event that was refused may be a little larger than the rest of the share.
	f.NamespaceFull = m.reserve > 0 && refused > 0 && !spared && float64(namespaceLimits.Bytes) >= 0.95*(m.free-m.reserve)
}

// sample is a line of the metrics: name{label="value",…} number.
type sample struct {
	name   string
	labels map[string]string // whose values have no escapes where it matters
	value  float64
}

// samples are the lines of the metrics that can be read.
func samples(text io.Reader) iter.Seq[sample] {
	return func(yield func(sample) bool) {
		for lines := bufio.NewScanner(text); lines.Scan(); {
			if s, ok := readSample(lines.Text()); ok && !yield(s) {
				return
			}
		}
	}
}

func readSample(line string) (s sample, ok bool) {
	end := strings.LastIndexByte(line, ' ')
	if end < 0 || strings.HasPrefix(line, "#") {
		return s, false
	}
	value, err := strconv.ParseFloat(line[end+1:], 64)
	name, list, _ := strings.Cut(strings.TrimSuffix(line[:end], "}"), "{")
	if !strings.HasPrefix(name, "reschedule_") || strings.HasSuffix(name, "_bucket") {
		return s, false // most lines
	}
	labels := map[string]string{}
	for pair := range strings.SplitSeq(list, ",") {
		if label, quoted, ok := strings.Cut(pair, "="); ok {
			labels[label] = strings.Trim(quoted, `"`)
		}
	}
	return sample{name, labels, value}, err == nil
}
