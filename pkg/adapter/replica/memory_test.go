package replica_test

import (
	"math/rand/v2"
	"testing"

	"github.com/reschedule-dev/reschedule/pkg/adapter/replica"
	"github.com/reschedule-dev/reschedule/pkg/adapter/replica/replicatest"
)

// The log of the simulation is one.
func TestMemory_Conforms(t *testing.T) {
	t.Parallel()
	replicatest.Conformance(t, func(*testing.T) (a, b replica.Log) {
		m := replicatest.NewMemory(rand.New(rand.NewPCG(1, 1)), replicatest.Faults{})
		return m.Member(), m.Member()
	})
}
