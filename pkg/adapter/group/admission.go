package group

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"
)

// admission is what a member says to another one whose disk is empty.
type admission struct {
	// Empty: this member's disk is empty too, and it has not joined yet.
	Empty bool `json:"empty"`
	// Marks are the members that have taken part.
	Marks map[string]uint64 `json:"marks"`
}

// admissionPath is below the port for forwarded calls. No source has such an address.
const admissionPath = "/-/admission"

var errLostDisk = errors.New("group: the group knows this member, but its data directory is empty: a member that has lost its disk has also forgotten what it promised to the others, " +
	"and would endanger changes that were acknowledged. It must not start: bring its disk back. See docs/replication.md, Limits")

// answerAdmission says what this member knows. Before it knows, it answers 503.
func (m *Member) answerAdmission(w http.ResponseWriter, r *http.Request) {
	var a admission
	switch {
	case m.empty.Load():
		a.Empty = true
	case !m.joined.Load():
		unavailable(w, "this member has not joined yet")
		return
	default:
		var err error
		if a.Marks, err = m.shard.Marks(r.Context()); err != nil {
			unavailable(w, "the marks cannot be read")
			return
		}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(a) // a member that went away
}

// admit returns when this member may take part. A member with data may at once. One without
// asks both others: it is a new one if they are empty too, or have never heard from it.
func (m *Member) admit(ctx context.Context) error {
	r := &m.cfg
	_, err := os.Stat(filepath.Join(m.cfg.DataDir, "log", "member"))
	if err == nil {
		return nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("group: data directory: %w", err)
	}
	if m.view.Applied() > 0 {
		return errLostDisk
	}
	m.empty.Store(true)
	m.cfg.Log.Info("the data directory is empty: waiting for the other members, since the first start needs all three")
	for name, peer := range r.Peers {
		for name != r.Member {
			said, err := m.ask(ctx, forwardAddress(peer))
			if err == nil {
				if _, known := said.Marks[r.Member]; known {
					return errLostDisk
				}
				break
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(100 * time.Millisecond):
			}
		}
	}
	// The others may still be asking: they are told that this member was empty until the
	// log has the first mark of each.
	return nil
}

func (m *Member) ask(ctx context.Context, address string) (said admission, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, m.cfg.scheme()+"://"+address+admissionPath, http.NoBody)
	if err != nil {
		return said, err
	}
	answer, err := m.client.Do(request)
	if err != nil {
		return said, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return said, fmt.Errorf("group: a member answered %d", answer.StatusCode)
	}
	return said, json.NewDecoder(http.MaxBytesReader(nil, answer.Body, 64<<10)).Decode(&said)
}
