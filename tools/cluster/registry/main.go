// Registry is the registry of hack/cluster: distribution's, which keeps images in a directory.
// Its other ways to store them would bring the clients of three clouds.
package main

import (
	"os"

	"github.com/distribution/distribution/v3/registry"
	_ "github.com/distribution/distribution/v3/registry/storage/driver/filesystem"
)

func main() {
	if registry.RootCmd.Execute() != nil {
		os.Exit(1)
	}
}
