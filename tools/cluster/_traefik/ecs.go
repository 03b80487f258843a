// Package ecs stands for Traefik's provider of Amazon ECS, whose client is half a million lines
// to compile. hack/cluster/images.sh puts it in the place of Traefik's.
package ecs

import (
	"errors"

	"github.com/traefik/traefik/v3/pkg/config/dynamic"
	"github.com/traefik/traefik/v3/pkg/safe"
)

// Provider has nothing to provide.
type Provider struct{}

// SetDefaults has none to set.
func (*Provider) SetDefaults() {}

// Init refuses to be used.
func (*Provider) Init() error { return errors.New("built without Amazon ECS") }

// Provide does nothing.
func (*Provider) Provide(chan<- dynamic.Message, *safe.Pool) error { return nil }
