// Package replicated runs three real processes of adapter-replicated on loopback, ends, stops
// and restarts them while callers write, and holds what they acknowledged and delivered
// against the promises.
package replicated
