package harness

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
)

// LaunchGroup starts the members a, b and c of a group, each with its own flags and the flags of a group. What has started is
// returned with an error too.
func (p Process) LaunchGroup(flags func(name string) []string) (map[string]*Adapter, error) {
	addresses := map[string]string{}
	for _, name := range []string{"a", "b", "c"} {
		address, err := FreePair()
		if err != nil {
			return nil, err
		}
		addresses[name] = name + "=" + address
	}
	peers := strings.Join(slices.Sorted(maps.Values(addresses)), ",")
	var (
		starts   sync.WaitGroup
		mu       sync.Mutex
		members  = map[string]*Adapter{}
		failures []error
	)
	for name := range addresses {
		starts.Go(func() { // a member is ready once two run
			a, err := p.Launch(append(flags(name), "--replicated", "--member", name, "--peers", peers)...)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failures = append(failures, err)
				return
			}
			members[name] = a
		})
	}
	starts.Wait()
	return members, errors.Join(failures...)
}
