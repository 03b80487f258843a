// Package store keeps entries and their indexes on stable storage, on Pebble.
package store
