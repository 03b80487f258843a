//go:build !linux

package turns

func shorten() {}
