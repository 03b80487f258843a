package group

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/reschedule-dev/reschedule/pkg/adapter/replica"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
)

// stoppedLog has one page.
type stoppedLog struct {
	replica.Log
	entry replica.Entry
}

func (l stoppedLog) State(context.Context) (replica.State, error) { return replica.State{}, nil }

func (l stoppedLog) Read(context.Context, uint64) (replica.Page, error) {
	return replica.Page{Entries: []replica.Entry{l.entry}}, nil
}

// The back-up of a stopped member ends where its log is damaged or has a gap. There was none.
func TestReplay_EndsWhereTheLogIsDamaged(t *testing.T) {
	t.Parallel()
	for name, entry := range map[string]replica.Entry{"damaged": {Seq: 1, Data: []byte("damaged")}, "gap": {Seq: 5}} {
		v, err := store.OpenView(store.Options{Dir: "data", FS: vfs.NewMem()})
		if err != nil {
			t.Fatal(err)
		}
		s := Settings{ReadStopped: func(ctx context.Context, _, _ string, read func(context.Context, replica.Log) error) error {
			return read(ctx, stoppedLog{entry: entry})
		}}
		if err := s.Replay()(t.Context(), "", "", v); !errors.Is(err, store.ErrLogDamaged) {
			t.Errorf("%s: %v", name, err)
		}
		if err := v.Close(); err != nil {
			t.Error(err)
		}
	}
}

// Settings that cannot work end the start, and the error names the flag. The log listened beyond loopback without TLS;
// members with one address, or with a space in their names, waited for each other for ever.
func TestSettings_AreRefusedAtTheStart(t *testing.T) {
	t.Parallel()
	const good = "a=127.0.0.1:10 b=127.0.0.1:12 c=127.0.0.1:14"
	for _, c := range []struct {
		peers, peerListen, forwardListen, tls, want string
	}{
		{good, "", "", "", ""},
		{good, "127.0.0.2:10", "127.0.0.2:11", "", ""},
		{good, "0.0.0.0:10", ":11", "dir", ""},
		{"a=127.0.0.1:10 b=127.0.0.2:10 c=[::1]:11", "", "", "", ""},
		{good, "0.0.0.0:10", "", "", "--peer-listen 0.0.0.0:10 is not on loopback: give --peer-tls-dir"},
		{good, ":10", "", "", "--peer-listen"},
		{good, "[::]:10", "", "", "--peer-listen"},
		{good, "10", "", "", "--peer-listen"},
		{good, "", ":11", "", "--forward-listen"},
		{good, "127.0.0.1:11", "", "", "--peer-listen or --forward-listen"},
		{good, "", "127.0.0.1:10", "", "--peer-listen or --forward-listen"},
		{"a=127.0.0.1:10 b=127.0.0.1:12", "", "", "", "--peers has 2 members: give three"},
		{good + " d=127.0.0.1:16", "", "", "", "--peers has 4 members: give three"},
		{good + " d=127.0.0.1:16 e=127.0.0.1:18 f=127.0.0.1:20", "", "", "", "--peers has 6 members: give three"},
		{"b=127.0.0.1:10 c=127.0.0.1:12 d=127.0.0.1:14", "", "", "", `--member "a" is not in --peers`},
		{"a=127.0.0.1:10 b=127.0.0.1:10 c=127.0.0.1:14", "", "", "", "--peers: members a and b"},
		{"a=127.0.0.1:10 b=LOCALHOST:10 c=127.0.0.1:14", "", "", "", "--peers: members a and b"},
		{"a=127.0.0.1:10 b=127.0.0.1:12 c=127.0.0.1:11", "", "", "", "--peers: members a and c"},
		{"a=A.example:10 b=b.example:10 c=a.example:11", "", "", "dir", "--peers: members a and c"},
		{"a=127.0.0.1:10 b\u00a0=127.0.0.1:12 c=127.0.0.1:14", "", "", "", "--peers: the name"},
		{"a=127.0.0.1:10 b/=127.0.0.1:12 c=127.0.0.1:14", "", "", "", "--peers: the name"},
	} {
		s := Settings{Member: "a", PeerListen: c.peerListen, ForwardListen: c.forwardListen, TLSDir: c.tls, Open: func(LogOptions) (Log, error) { return nil, nil }}
		for peer := range strings.SplitSeq(c.peers, " ") {
			name, address, _ := strings.Cut(peer, "=")
			s.Peers = append(s.Peers, Peer{name, address})
		}
		if err := s.Check(); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
