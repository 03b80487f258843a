package cluster

import (
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

// The commands of docs/kubebuilder.md, as they are there, with the kubebuilder that its
// authors published: a new project is scaffolded, changed, built, and runs from zero.
// Its Reconcile is called for a new object, and again when RequeueAfter says, each time
// by a process of its own.
func TestKubebuilder_Page(t *testing.T) {
	t.Parallel()
	p := running(t)
	if err := defineKinds(); err != nil { // the Knative Service among them
		t.Fatal(err)
	}
	const ns = "sites-system"
	project := newProject(t, ns)
	z := &fromZero{workload: workload{t: t, namespace: ns, name: "sites", binary: project.path("sites/bin/manager"), log: project.path("operator.log")}}
	z.follow()
	for i, section := range pageSections(t, "../../docs/kubebuilder.md") {
		project.run(section)
		if i == 0 {
			project.dir = project.path("sites") // as the page changes it
		}
	}

	source := &source{programs: p, t: t, namespace: ns, name: "sites", client: typedSourcesIn(t, ns)}
	source.ready()
	source.token = source.tokenOf(ns, "sites-controller-manager", source.audience())
	settle(t, func() bool { return z.count("dev.reschedule.due 200") >= 2 }, "RequeueAfter does not come back as a timer")
	z.succeeded()
	var reply struct{ DueAt time.Time }
	settle(t, func() bool {
		r := source.call(source.token, http.MethodGet, harness.KeyPath("Site/default/hello"), "")
		return r.Status == http.StatusOK && json.Unmarshal(r.Body, &reply) == nil && time.Until(reply.DueAt) < 5*time.Second
	}, "the key has no timer")
	source.delete()
}
