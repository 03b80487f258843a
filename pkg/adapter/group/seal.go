package group

import (
	"context"
	"errors"
	"net/http"
	"time"
)

// sealPath is where a member asks the owner to seal the group, below the port for members.
const sealPath = "/-/seal"

// sealTime is how long a seal may take: deliveries under way end before.
const sealTime = 20 * time.Second

// Seal ends the group: the owner ends deliveries and calls, and writes the log's last entry.
// It returns once this member has that entry on disk, and so all that was acknowledged.
func (m *Member) Seal(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, sealTime)
	defer cancel()
	for !m.view.Sealed() {
		owner, own, _ := m.stage.engine.Load().group.Owner()
		switch t := m.current(); {
		case own && t != nil:
			err = t.seal()
		case owner.Member != "" && owner.Member != m.cfg.Member:
			err = m.peers.call(ctx, memberCall{method: http.MethodPost, member: owner.Member, path: sealPath, timeout: sealTime}, nil)
		}
		select {
		case <-ctx.Done():
			return errors.Join(errors.New("group: the seal did not reach this member: start the other members, and try again"), err)
		case <-time.After(50 * time.Millisecond):
		}
	}
	return m.view.Flush()
}

func (m *Member) answerSeal(w http.ResponseWriter, _ *http.Request) {
	t := m.current()
	if t == nil {
		unavailable(w, detailNoOwner)
		return
	}
	if err := t.seal(); err != nil {
		unavailable(w, err.Error())
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// seal ends deliveries and calls, and then the group. After an error the tenure ends by
// itself, and the next one serves.
func (t *tenure) seal() error {
	t.quiesce()
	t.drain(handover)
	if err := t.store.Seal(); err != nil {
		return err
	}
	t.m.cfg.Log.Warn("the group is sealed: nothing is changed or delivered any more")
	return nil
}
