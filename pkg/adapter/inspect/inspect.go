// Package inspect is a placeholder until the store's offline doors are there.
package inspect

import "io"

// Main runs a subcommand.
func Main(args []string, stdout, stderr io.Writer) int { return 2 }
