package replica

// Each of these makes the member break a rule that the simulation must find.

// BreakLease makes the lease last for another share of T.
func (c *Config) BreakLease(share float64) { c.testFaults.lease = share }

// BreakMark makes the member say that its view is on disk without a flush.
func (c *Config) BreakMark() { c.testFaults.markUnsaved = true }

// BreakClock makes the wall clock of each owner the shard's clock.
func (c *Config) BreakClock() { c.testFaults.notHeld = true }

// BreakRelease makes the lease last until the release of the shard has an answer.
func (c *Config) BreakRelease() { c.testFaults.endsLate = true }
