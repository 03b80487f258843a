package store

import (
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
)

// checkpointDir is a directory inside the data directory: hard links need the same
// volume.
const checkpointDir = "checkpoint"

// checkpointBytes is what a checkpoint takes at most beside links: the logs, and the
// manifest.
const checkpointBytes = 6 * memTable

// ErrCheckpoint is the error of a second checkpoint at a time.
var ErrCheckpoint = errors.New("store: another back-up is under way")

// Checkpoint calls use with a directory that holds the store as it is now, with every
// change that was applied before, and removes the directory afterwards. There is one at a
// time. Changes go on meanwhile. The tables are hard links, which keep their space until
// the end: use must end when [DB.Usage] reports that the disk is nearly full.
func (db *DB) Checkpoint(use func(dir string) error) (err error) {
	if !db.copying.TryLock() {
		return ErrCheckpoint
	}
	defer db.copying.Unlock()
	if !db.gate.enter() {
		return ErrClosed
	}
	dir := db.space.fs.PathJoin(db.dir, checkpointDir)
	err = db.checkpoint(dir)
	db.gate.leave()
	defer func() { err = errors.Join(err, db.space.fs.RemoveAll(dir)) }()
	if err != nil {
		return err
	}
	return use(dir)
}

func (db *DB) checkpoint(dir string) error {
	if err := db.usable(); err != nil {
		return err
	}
	if err := db.Space(checkpointBytes, checkpointBytes); err != nil {
		return err
	}
	if err := db.db.Checkpoint(dir, pebble.WithFlushedWAL()); err != nil {
		return fmt.Errorf("store: making a checkpoint: %w", err)
	}
	return nil
}
