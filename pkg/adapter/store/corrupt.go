package store

import (
	"errors"
	"fmt"
)

// CorruptError says that a record cannot be read. The key is set aside: Get
// reports it, listings skip it, and a Change without Old replaces it.
type CorruptError struct {
	Source, Key string
	Err         error
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("store: the record of key %q of source %q is corrupt: %v", e.Key, e.Source, e.Err)
}

func (e *CorruptError) Unwrap() error { return e.Err }

// Corrupt is how often something corrupt was met since Open.
func (db *DB) Corrupt() int64 { return db.corrupt.Load() }

func (db *DB) corruptRecord(source, key string, err error) *CorruptError {
	db.corrupt.Add(1)
	return &CorruptError{Source: source, Key: key, Err: err}
}

// skip notes that a listing goes on without something.
func (db *DB) skip(err error) {
	db.log.Error("store: skipping what is corrupt", "error", err)
}

func isCorrupt(err error) bool {
	var c *CorruptError
	return errors.As(err, &c)
}
