package replica

// Break makes the member break a rule that the simulation must find.
func (c *Config) Break(lease float64, markUnsaved, notHeld bool) {
	c.sabotage.lease, c.sabotage.markUnsaved, c.sabotage.notHeld = lease, markUnsaved, notHeld
}
