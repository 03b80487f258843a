package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/reschedule-dev/reschedule/bench/load"
)

// pebbleConfig is a load on bare Pebble.
type pebbleConfig struct {
	Dir            string
	Callers, Batch int
	Warm, For      time.Duration
	First          uint32
	Memory         bool // within tests
}

// jobTally is the result of a load in a process of its own.
type jobTally struct {
	load.Tally
	CPU time.Duration // of the whole process within the window
}

func (t jobTally) outcome() outcome {
	o := outcome{rate: t.Rate(), p50: t.P50, p99: t.P99}
	if t.Items > 0 {
		o.server = t.CPU / time.Duration(t.Items)
	}
	return o
}

// pebbleJob writes the least that a scheduler needs, the record and the row of
// the due-time index, and waits until both are durable.
func pebbleJob(ctx context.Context, config []byte) (any, error) {
	var c pebbleConfig
	if err := json.Unmarshal(config, &c); err != nil {
		return nil, fmt.Errorf("driver: pebble: %w", err)
	}
	// The defaults of Pebble are for a few megabytes.
	options := &pebble.Options{MemTableSize: 64 << 20, CacheSize: 64 << 20, Logger: silent{}}
	if c.Memory {
		options.FS = vfs.NewMem()
	}
	db, err := pebble.Open(c.Dir, options)
	if err != nil {
		return nil, fmt.Errorf("driver: pebble: %w", err)
	}
	open := func(caller int) (load.Op, func(), error) {
		maker := load.NewMaker(uint64(c.First) + uint64(caller))
		index := c.First + uint32(caller*c.Batch)
		var record, row []byte
		return func() (int, error) {
			batch := db.NewBatch()
			for i := range c.Batch {
				key := load.Key(index + uint32(i))
				record = append(append(record[:0], "s/bench/"...), key...)
				row = append(row[:0], "d/"...)
				row = binary.BigEndian.AppendUint64(row, uint64(time.Now().Add(writeDelay).UnixNano()))
				row = append(append(row, "/bench/"...), key...)
				if err := batch.Set(record, maker.Random(), nil); err != nil {
					return 0, err
				}
				if err := batch.Set(row, nil, nil); err != nil {
					return 0, err
				}
			}
			index += uint32(c.Callers * c.Batch)
			if err := db.ApplyNoSyncWait(batch, pebble.Sync); err != nil {
				return 0, err
			}
			if err := batch.SyncWait(); err != nil {
				return 0, err
			}
			return c.Batch, batch.Close()
		}, func() {}, nil
	}
	var cpu []time.Duration
	tally, err := load.Load{Callers: c.Callers, Warm: c.Warm, For: c.For}.Run(ctx, open, func() { cpu = append(cpu, ownCPU()) })
	if closeErr := db.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return nil, fmt.Errorf("driver: pebble: %w", err)
	}
	found := jobTally{Tally: tally}
	if len(cpu) == 2 {
		found.CPU = cpu[1] - cpu[0]
	}
	return found, nil
}

// silent drops the log of Pebble. A fatal error ends the process.
type silent struct{}

func (silent) Infof(string, ...any)  {}
func (silent) Errorf(string, ...any) {}
func (silent) Fatalf(format string, args ...any) {
	fmt.Printf(format+"\n", args...)
	syscall.Exit(1)
}
