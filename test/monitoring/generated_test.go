package monitoring

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/reschedule-dev/reschedule/internal/boards"
)

// The dashboards are as in internal/boards, and the PrometheusRule has the rules
// of the plain file. With -update the test writes them.
func TestGenerated_IsUpToDate(t *testing.T) {
	t.Parallel()
	want := map[string]string{"prometheusrule.yaml": prometheusRule(t)}
	for name, board := range boards.All() {
		text, err := board.JSON()
		if err != nil {
			t.Fatal(err)
		}
		want["dashboards/"+name] = string(text)
	}
	for name, text := range want {
		if *update {
			if err := os.WriteFile(config+name, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if read(t, config+name) != text {
			t.Errorf("config/monitoring/%s is not up to date: run go test ./test/monitoring -run Generated -update", name)
		}
	}
}

// prometheusRule wraps the plain rules for the Prometheus Operator.
func prometheusRule(t *testing.T) string {
	t.Helper()
	_, groups, found := strings.Cut(read(t, rulesFile), "\ngroups:\n")
	if !found {
		t.Fatal("the rules have no groups")
	}
	return `# Generated from rules/reschedule.yaml, which says how.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: reschedule
  namespace: knative-eventing
  labels:
    app.kubernetes.io/name: reschedule
    app.kubernetes.io/version: devel
spec:
  groups:
` + regexp.MustCompile(`(?m)^(.)`).ReplaceAllString(groups, "  $1")
}

// Grafana draws every panel: it has a unit, a description, the variable as its data
// source, and no type that Grafana has dropped.
func TestBoards_AreWhole(t *testing.T) {
	t.Parallel()
	for name := range boards.All() {
		text := read(t, config+"dashboards/"+name)
		var board struct {
			UID           string
			SchemaVersion int
			Panels        []struct {
				ID                       int
				Type, Title, Description string
				Datasource               struct{ UID string }
				GridPos                  struct{ X, Y, W, H int }
				FieldConfig              struct{ Defaults struct{ Unit string } }
				Targets                  []struct {
					Expr, LegendFormat string
					Datasource         struct{ UID string }
				}
			}
			Templating struct {
				List []struct{ Name, Type string }
			}
		}
		if err := json.Unmarshal([]byte(text), &board); err != nil {
			t.Fatal(err)
		}
		if board.UID == "" || board.SchemaVersion < 41 || board.Templating.List[0].Type != "datasource" {
			t.Errorf("%s: uid %q, schema %d, variables %v", name, board.UID, board.SchemaVersion, board.Templating.List)
		}
		taken := map[[2]int]string{}
		for i, p := range board.Panels {
			if p.ID != i+1 {
				t.Errorf("%s: %q has id %d", name, p.Title, p.ID)
			}
			for x := range p.GridPos.W {
				for y := range p.GridPos.H {
					at := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
					if taken[at] != "" || at[0] >= 24 {
						t.Fatalf("%s: %q is where %q is: %v", name, p.Title, taken[at], at)
					}
					taken[at] = p.Title
				}
			}
			if p.Type == "row" {
				continue
			}
			if p.Type != "timeseries" && p.Type != "stat" || p.Description == "" || p.FieldConfig.Defaults.Unit == "" ||
				p.Datasource.UID != "${datasource}" || len(p.Targets) == 0 {
				t.Errorf("%s: %q is not whole: %+v", name, p.Title, p)
			}
			for _, q := range p.Targets {
				if q.LegendFormat == "" || q.Datasource.UID != "${datasource}" || regexp.MustCompile(`\[\d`).MatchString(q.Expr) {
					t.Errorf("%s: %q: %+v", name, p.Title, q)
				}
			}
		}
	}
}
