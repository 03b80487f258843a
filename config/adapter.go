// Package config has the manifests that programs need at run time.
//
// It guarantees that such a manifest is written once: the file that is installed is the
// file that is linked in. All other files of the directory are only installed.
package config

import _ "embed" // for the manifest

// Adapter is the StatefulSet of the adapter. The controller applies it where an installer
// cannot (--manage-adapter).
//
//go:embed 500-adapter.yaml
var Adapter []byte
