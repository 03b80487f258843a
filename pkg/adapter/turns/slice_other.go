//go:build !linux

package turns

func shortenTimeSlices() {}
