//go:build !windows

package command

// obeys reports whether a terminal obeys escapes. Only a console of Windows may not.
func obeys(any) bool { return true }
