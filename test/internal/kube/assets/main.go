// Command assets builds the API server of the tests, for tests that are not in Go, and
// prints the directory of its programs.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/reschedule-dev/reschedule/test/internal/kube"
)

func main() {
	dir, err := kube.Assets(context.Background())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(dir)
}
