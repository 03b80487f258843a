package replica

// Each of these makes the member break a rule that the simulation must find.

// BreakLease makes the lease last for another share of T.
func (c *Config) BreakLease(share float64) { c.testFaults.lease = share }

// BreakMark makes the member say that its view is on disk without a flush.
func (c *Config) BreakMark() { c.testFaults.markUnsaved = true }

// BreakClock makes the wall clock of each owner the group's clock.
func (c *Config) BreakClock() { c.testFaults.notHeld = true }

// BreakRelease makes the lease last until the release of the group has an answer.
func (c *Config) BreakRelease() { c.testFaults.endsLate = true }

// BreakParts makes one batch of the parts of two owners.
func (c *Config) BreakParts() { c.testFaults.joins = true }

// LimitEntries makes entries smaller, so that small batches have many parts.
func (c *Config) LimitEntries(n int) { c.testFaults.entry = n }

// Batches returns the batches of all entries up to the last one, by their last parts.
func Batches(entries map[uint64]string, last uint64) (map[uint64]string, error) {
	all := map[uint64]string{}
	var parts assembly
	for seq := uint64(1); seq <= last; seq++ {
		batch, whole, err := parts.add(&Entry{seq, []byte(entries[seq])})
		if err != nil {
			return nil, err
		}
		if whole {
			all[seq] = string(batch)
		}
	}
	return all, nil
}
