package etcdlog

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/reschedule-dev/reschedule/pkg/adapter/replica"
)

// Log is the log of a group, by these keys:
//
//	s/h       the head: epoch, number of the newest entry, the group's clock, 8 bytes each
//	s/o       the owner, as JSON; its revision is the epoch
//	l/<seq>   an entry: the epoch, 8 bytes, and its data
//	f/<m>     what the view of member m has on disk
//	r/<m>     the report of member m, as JSON
type Log struct {
	s                        *Server
	prefix                   string
	head, owner, entry, mark string
	report                   string

	marking sync.Mutex
	marked  int64 // the revision of the last mark, as far as it is known
}

var _ replica.Log = (*Log)(nil)

// Entries returns the log.
func (s *Server) Entries() replica.Log { return s.log("") }

// log returns the log whose keys begin with the text.
func (s *Server) log(text string) *Log {
	state := text + "s/"
	return &Log{s: s, prefix: state, head: state + "h", owner: state + "o", entry: text + "l/", mark: text + "f/", report: text + "r/"}
}

func (l *Log) entryKey(seq uint64) string {
	return l.entry + string(binary.BigEndian.AppendUint64(nil, seq))
}

func headValue(epoch int64, last uint64, wall time.Time) string {
	b := binary.BigEndian.AppendUint64(nil, uint64(epoch))
	b = binary.BigEndian.AppendUint64(b, last)
	return string(binary.BigEndian.AppendUint64(b, uint64(wall.UnixNano())))
}

// attempt ends with ctx, or when there is another leader: what was on its way to the old
// one may be lost, and etcd would report it only after seconds.
func (l *Log) attempt(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	changed := l.s.etcd.Server.LeaderChangedNotify()
	go func() {
		select {
		case <-changed:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

func (l *Log) mine(epoch int64) clientv3.Cmp {
	return clientv3.Compare(clientv3.ModRevision(l.owner), "=", epoch)
}

// Append implements replica.Log.
func (l *Log) Append(ctx context.Context, epoch int64, seq uint64, data []byte, wall time.Time) (bool, error) {
	ctx, cancel := l.attempt(ctx)
	defer cancel()
	key := l.entryKey(seq)
	own := binary.BigEndian.AppendUint64(nil, uint64(epoch))
	r, err := l.s.client.Txn(ctx).
		If(l.mine(epoch), clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).
		Then(clientv3.OpPut(key, string(own)+string(data)), clientv3.OpPut(l.head, headValue(epoch, seq, wall))).
		Else(clientv3.OpGet(key)).Commit()
	if errors.Is(err, rpctypes.ErrRequestTooLarge) {
		err = errors.Join(replica.ErrTooLarge, err)
	}
	if err != nil {
		return false, fmt.Errorf("etcdlog: appending: %w", err)
	}
	if r.Succeeded {
		return true, nil
	}
	if kvs := r.Responses[0].GetResponseRange().Kvs; len(kvs) == 1 && bytes.HasPrefix(kvs[0].Value, own) {
		return false, nil
	}
	return false, replica.ErrFenced
}

// Renew implements replica.Log.
func (l *Log) Renew(ctx context.Context, epoch int64, last uint64, wall time.Time) error {
	ctx, cancel := l.attempt(ctx)
	defer cancel()
	return l.fenced(l.s.client.Txn(ctx).If(l.mine(epoch)).Then(clientv3.OpPut(l.head, headValue(epoch, last, wall))).Commit())
}

func (l *Log) fenced(r *clientv3.TxnResponse, err error) error {
	switch {
	case err != nil:
		return fmt.Errorf("etcdlog: %w", err)
	case !r.Succeeded:
		return replica.ErrFenced
	}
	return nil
}

// Claim implements replica.Log.
func (l *Log) Claim(ctx context.Context, seen replica.State, next replica.Owner, wall time.Time) (int64, error) {
	ctx, cancel := l.attempt(ctx)
	defer cancel()
	value, err := json.Marshal(next)
	if err != nil {
		return 0, fmt.Errorf("etcdlog: %w", err)
	}
	r, err := l.s.client.Txn(ctx).
		If(l.mine(seen.Epoch), clientv3.Compare(clientv3.ModRevision(l.head), "=", seen.Head)).
		Then(clientv3.OpPut(l.owner, string(value)), clientv3.OpPut(l.head, headValue(0, seen.Last, wall))).Commit()
	if err := l.fenced(r, err); err != nil {
		return 0, err
	}
	return r.Header.Revision, nil
}

// Release implements replica.Log.
func (l *Log) Release(ctx context.Context, epoch int64, next replica.Owner, wall time.Time) error {
	ctx, cancel := l.attempt(ctx)
	defer cancel()
	head, err := l.State(ctx)
	if err != nil {
		return err
	}
	value, err := json.Marshal(next)
	if err != nil {
		return fmt.Errorf("etcdlog: %w", err)
	}
	return l.fenced(l.s.client.Txn(ctx).If(l.mine(epoch)).
		Then(clientv3.OpPut(l.owner, string(value)), clientv3.OpPut(l.head, headValue(0, head.Last, wall))).Commit())
}

// pageEntries bounds the entries of a page, which is in memory twice.
const pageEntries = 128

// Read implements replica.Log. It reads what this member has, also without a majority.
func (l *Log) Read(ctx context.Context, after uint64) (replica.Page, error) {
	r, err := l.s.client.Get(ctx, l.entryKey(after+1), clientv3.WithRange(clientv3.GetPrefixRangeEnd(l.entry)),
		clientv3.WithLimit(pageEntries), clientv3.WithSerializable())
	if err != nil {
		return replica.Page{}, fmt.Errorf("etcdlog: reading: %w", err)
	}
	p := replica.Page{More: r.More, Revision: r.Header.Revision}
	for _, kv := range r.Kvs {
		if len(kv.Key) != len(l.entry)+8 || len(kv.Value) < 8 {
			return replica.Page{}, errFormat
		}
		p.Entries = append(p.Entries, replica.Entry{Seq: binary.BigEndian.Uint64(kv.Key[len(l.entry):]), Data: kv.Value[8:]})
	}
	return p, nil
}

var errFormat = errors.New("etcdlog: a value is not of this format")

// take adds a key to the state.
func (l *Log) take(s *replica.State, kv *mvccpb.KeyValue) error {
	switch string(kv.Key) {
	case l.head:
		if len(kv.Value) != 24 {
			return errFormat
		}
		s.Head, s.Last = kv.ModRevision, binary.BigEndian.Uint64(kv.Value[8:])
		s.Wall = time.Unix(0, int64(binary.BigEndian.Uint64(kv.Value[16:])))
	case l.owner:
		s.Epoch, s.Owner = kv.ModRevision, replica.Owner{}
		if err := json.Unmarshal(kv.Value, &s.Owner); err != nil {
			return fmt.Errorf("%w: %w", errFormat, err)
		}
	}
	return nil
}

// State implements replica.Log.
func (l *Log) State(ctx context.Context) (replica.State, error) {
	r, err := l.s.client.Txn(ctx).Then(clientv3.OpGet(l.head, clientv3.WithSerializable()), clientv3.OpGet(l.owner, clientv3.WithSerializable())).Commit()
	if err != nil {
		return replica.State{}, fmt.Errorf("etcdlog: reading the head: %w", err)
	}
	var s replica.State
	for _, x := range r.Responses {
		for _, kv := range x.GetResponseRange().Kvs {
			if err := l.take(&s, kv); err != nil {
				return replica.State{}, err
			}
		}
	}
	return s, nil
}

// Follow implements replica.Log. The client keeps what was not taken from its watch, without a bound. So the watch is
// of the head and the owner alone, and is read also while the caller takes no state.
func (l *Log) Follow(ctx context.Context, revision int64) <-chan replica.State {
	states := make(chan replica.State)
	go func() {
		defer close(states)
		changes := l.s.client.Watch(ctx, l.prefix, clientv3.WithPrefix(), clientv3.WithRev(revision+1))
		var newest replica.State
		for {
			var send chan<- replica.State
			if newest != (replica.State{}) {
				send = states
			}
			select {
			case send <- newest:
				newest = replica.State{}
			case r, ok := <-changes:
				if !ok {
					return
				}
				if err := l.takeAll(&newest, &r); err != nil {
					l.s.opts.Log.Warn("the log cannot be followed", "error", err)
					return
				}
				l.awaitRead(ctx, max(newest.Head, newest.Epoch))
			}
		}
	}()
	return states
}

// awaitRead waits until a change can be read: etcd reports it to watches some microseconds before.
func (l *Log) awaitRead(ctx context.Context, revision int64) {
	for l.s.etcd.Server.KV().Rev() < revision {
		select {
		case <-ctx.Done():
			return
		case <-time.After(50 * time.Microsecond):
		}
	}
}

// takeAll adds changes to the state.
func (l *Log) takeAll(s *replica.State, changes *clientv3.WatchResponse) error {
	if err := changes.Err(); err != nil {
		return err
	}
	for _, e := range changes.Events {
		if err := l.take(s, e.Kv); err != nil {
			return err
		}
	}
	return nil
}

// Mark implements replica.Log. Each mark compares the revision of the one before.
func (l *Log) Mark(ctx context.Context, member string, seq uint64) error {
	l.marking.Lock()
	defer l.marking.Unlock()
	for {
		done, at, err := l.markAfter(ctx, l.marked, member, seq)
		if err != nil {
			return err
		}
		if l.marked = at; done {
			return nil
		}
	}
}

// markAfter writes the mark if the one before is of the revision, and returns the revision of the newest one.
func (l *Log) markAfter(ctx context.Context, before int64, member string, seq uint64) (done bool, at int64, err error) {
	key := l.mark + member
	r, err := l.s.client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", before)).
		Then(clientv3.OpPut(key, string(binary.BigEndian.AppendUint64(nil, seq)))).Else(clientv3.OpGet(key)).Commit()
	if err != nil {
		return false, 0, fmt.Errorf("etcdlog: %w", err)
	}
	if r.Succeeded {
		return true, r.Header.Revision, nil
	}
	for _, kv := range r.Responses[0].GetResponseRange().Kvs {
		at = kv.ModRevision
	}
	return false, at, nil
}

// Marks implements replica.Log.
func (l *Log) Marks(ctx context.Context) (map[string]uint64, error) {
	r, err := l.s.client.Get(ctx, l.mark, clientv3.WithPrefix(), clientv3.WithSerializable())
	if err != nil {
		return nil, fmt.Errorf("etcdlog: %w", err)
	}
	marks := map[string]uint64{}
	for _, kv := range r.Kvs {
		if len(kv.Value) != 8 {
			return nil, errFormat
		}
		marks[string(kv.Key[len(l.mark):])] = binary.BigEndian.Uint64(kv.Value)
	}
	return marks, nil
}

// Report implements replica.Log.
func (l *Log) Report(ctx context.Context, member string, r replica.Report) error {
	value, err := json.Marshal(r)
	if err == nil {
		_, err = l.s.client.Put(ctx, l.report+member, string(value))
	}
	if err != nil {
		return fmt.Errorf("etcdlog: %w", err)
	}
	return nil
}

// Reports implements replica.Log. It asks the majority: of what this member alone has received, a copy that was
// begun since would be missing, and the log would be trimmed.
func (l *Log) Reports(ctx context.Context) (map[string]replica.Report, error) {
	answer, err := l.s.client.Get(ctx, l.report, clientv3.WithPrefix())
	if err != nil {
		return nil, fmt.Errorf("etcdlog: %w", err)
	}
	reports := map[string]replica.Report{}
	for _, kv := range answer.Kvs {
		var r replica.Report
		if err := json.Unmarshal(kv.Value, &r); err != nil {
			return nil, fmt.Errorf("%w: %w", errFormat, err)
		}
		reports[string(kv.Key[len(l.report):])] = r
	}
	return reports, nil
}

// Size implements replica.Log.
func (l *Log) Size() int64 {
	_, used := l.s.DBSize()
	return used
}

// Trim implements replica.Log. It compacts the history too, so that the file does not grow.
func (l *Log) Trim(ctx context.Context, seq uint64) error {
	r, err := l.s.client.Delete(ctx, l.entryKey(0), clientv3.WithRange(l.entryKey(seq+1)))
	if err != nil {
		return fmt.Errorf("etcdlog: trimming: %w", err)
	}
	if _, err := l.s.client.Compact(ctx, r.Header.Revision); err != nil {
		return fmt.Errorf("etcdlog: compacting: %w", err)
	}
	return nil
}
