// Command olm writes what the Operator Lifecycle Manager installs the project from.
//
//	olm bundle -version v1.2.3 -objects FILE -out DIR
//	olm catalog -bundle DIR -image REGISTRY/NAME@sha256:… -out FILE
//
// FILE has the objects of config with the component config/olm, with the images of a
// release. The bundle has the format registry+v1; the catalog is a file-based catalog with
// this one bundle.
//
// It guarantees that operator-framework's validators have neither an error nor a warning
// about the bundle, that the catalog is one that OLM reads, that no object is left out
// silently, and that the same input gives the same bytes.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "olm:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return errors.New("name a command: bundle or catalog")
	}
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	var (
		version = flags.String("version", "", "the version, such as v1.2.3")
		objects = flags.String("objects", "", "the file with the objects to install")
		dir     = flags.String("bundle", "", "the directory of the bundle")
		image   = flags.String("image", "", "the image of the bundle, by digest")
		out     = flags.String("out", "", "where to write")
	)
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	switch args[0] {
	case "bundle":
		text, err := os.ReadFile(*objects)
		if err != nil {
			return err
		}
		return writeBundle(*version, text, *out)
	case "catalog":
		return writeCatalog(*dir, *image, *out)
	}
	return fmt.Errorf("there is no command %q: bundle or catalog", args[0])
}
