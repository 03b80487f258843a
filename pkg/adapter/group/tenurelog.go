package group

import (
	"errors"

	"github.com/reschedule-dev/reschedule/pkg/adapter/replica"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
)

// tenureLog is a tenure as the log of a store.
type tenureLog struct {
	*replica.Tenure
	health *health
}

// MostDisks implements store.Log.
func (l tenureLog) MostDisks(is func(store.Disk) bool) bool { return l.health.others.mostDisks(is) }

// Full implements store.Log.
func (l tenureLog) Full() bool { return !l.HasSpace() }

// Valid implements store.Log.
func (l tenureLog) Valid() bool { return l.Tenure.Valid() && !l.health.mustYield() }

// Append implements store.Log.
func (l tenureLog) Append(batch []byte) error {
	if l.health.mustYield() { // the change may rest on what was not read
		return store.ErrNotOwner
	}
	switch err := l.Tenure.Append(batch); {
	case errors.Is(err, replica.ErrNotOwner):
		return store.ErrNotOwner
	case errors.Is(err, replica.ErrTooLarge):
		return errors.Join(store.ErrTooLarge, err)
	case err != nil:
		return errors.Join(store.ErrUnknown, err)
	}
	return nil
}
