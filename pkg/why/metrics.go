package why

import (
	"bufio"
	"io"
	"iter"
	"strconv"
	"strings"
	"time"
)

// ReadMetrics adds what only the metrics of the adapter show: a full disk, refusals,
// unreadable records, the limits in force, and whether a source without an object is
// suspended. What they do not show stays unknown. The source must not be shared.
func (f *Facts) ReadMetrics(text io.Reader) {
	var free, reserve, held, refused float64 // the last two of the namespace
	known := f.Source
	if known == nil {
		known = &Source{} // without a cluster
	}
	limits := map[string]*int64{
		"limits.maxPending": &known.MaxPending, "limits.maxBytes": &known.MaxBytes, "limits.maxInFlight": &known.MaxInFlight, "limits.maxPerSecond": &known.MaxPerSecond,
	}
	for s := range samples(text) {
		labels, value := s.labels, s.value
		near := labels["kn_source_namespace"] == f.Namespace
		mine := near && labels["kn_source_name"] == f.Name
		switch s.name {
		case "reschedule_storage_free_bytes":
			free = value
		case "reschedule_storage_reserve_bytes":
			reserve = value
		case "reschedule_storage_corrupt_total":
			f.Unreadable = int64(value)
		case "reschedule_stored_bytes":
			if near {
				held += value
			}
			if mine {
				f.StoredBytes = int64(value)
			}
		case "reschedule_source_suspended":
			if mine && f.Source == nil {
				known.Suspended = value > 0
				f.Source = known
			}
		case "reschedule_limit":
			if limit := limits[labels["limit"]]; mine && limit != nil {
				*limit = int64(value)
			}
		case "reschedule_quota_refused_total":
			if near && labels["quota"] == "disk" {
				refused += value
			}
			if mine && value > 0 {
				if f.QuotaRefused == nil {
					f.QuotaRefused = map[string]int64{}
				}
				f.QuotaRefused[labels["quota"]] += int64(value)
			}
		}
	}
	f.StorageFull = reserve > 0 && free < reserve
	// The adapter shares a disk that is nearly full in this way; see docs/operations.md. The
	// event that was refused may be a little larger than the rest of the share.
	f.NamespaceFull = reserve > 0 && refused > 0 && held >= 0.95*(free-reserve)
}

// ReadMetrics reads the metrics of the member, and reports that they are of an adapter in a group.
func (m *Member) ReadMetrics(text io.Reader) (known bool) {
	for s := range samples(text) {
		switch s.name {
		case "reschedule_shard_owner":
			known, m.Owner = true, s.value > 0
		case "reschedule_shard_majority":
			m.Majority = s.value > 0
		case "reschedule_shard_applied":
			m.Applied = int64(s.value)
		case "reschedule_shard_behind_seconds":
			m.Behind = time.Duration(s.value * float64(time.Second)).Round(10 * time.Millisecond)
		}
	}
	return known
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
	labels := map[string]string{}
	for pair := range strings.SplitSeq(list, ",") {
		if label, quoted, ok := strings.Cut(pair, "="); ok {
			labels[label] = strings.Trim(quoted, `"`)
		}
	}
	return sample{name, labels, value}, err == nil
}
