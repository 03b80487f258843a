package command

import (
	"slices"
	"strings"
	"testing"
)

// The adapter is in the namespace of the flag, else in the one that a source's address names, else in the one that has its
// StatefulSet. Of namespaces that a user may not look into, it is the usual one. An address names no other namespace.
func TestSystemNamespace_IsFound(t *testing.T) {
	t.Parallel()
	const plainSet = "/apis/apps/v1/namespaces/reschedule-system/statefulsets/reschedule-adapter"
	moved := func(c *cluster) { c.objects[plainSet] = c.objects[setPath]; delete(c.objects, setPath) }
	address := func(namespace string) func(*cluster) {
		return func(c *cluster) {
			c.source("ops", "web", func(o map[string]any) {
				o["status"].(map[string]any)["address"] = map[string]any{"url": "http://reschedule-adapter." + namespace + ".svc.cluster.local/ops/web"}
			})
		}
	}
	without := func(c *cluster) { delete(c.objects, group+"/namespaces/ops/reschedulesources/web") }
	for name, row := range map[string]struct {
		stage []func(*cluster)
		flags string
		want  string
	}{
		"address":             {stage: []func(*cluster){address("reschedule-system")}, want: "reschedule-system"},
		"address elsewhere":   {stage: []func(*cluster){address("ops"), moved}, want: "reschedule-system"},
		"no source, Knative":  {stage: []func(*cluster){without}, want: "knative-eventing"},
		"no source, no other": {stage: []func(*cluster){without, moved}, want: "reschedule-system"},
		"no rights":           {stage: []func(*cluster){without, func(c *cluster) { c.refuse["GET /statefulsets"] = 403 }}, want: "knative-eventing"},
		"flag":                {flags: "--system-namespace other", want: "other"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			for _, stage := range row.stage {
				stage(c)
			}
			_, out, errs := c.run(false, append([]string{"doctor", "-n", "ops"}, strings.Fields(row.flags)...)...)
			if want := row.want + "/pods/portforward/" + podName(0); !slices.Contains(c.reviews, want) {
				t.Errorf("it asked about %q, want %s: %s%s", c.reviews, want, out, errs)
			}
		})
	}
}
