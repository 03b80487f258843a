package command

import (
	"os"

	"golang.org/x/sys/windows"
)

// obeys makes a console of Windows obey the escapes of colours and of a cleared screen, and
// reports whether it does: an older one prints them.
func obeys(f any) bool {
	file, ok := f.(*os.File)
	if !ok {
		return false
	}
	var mode uint32
	console := windows.Handle(file.Fd())
	return windows.GetConsoleMode(console, &mode) == nil &&
		windows.SetConsoleMode(console, mode|windows.ENABLE_VIRTUAL_TERMINAL_PROCESSING) == nil
}
