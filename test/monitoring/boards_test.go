package monitoring

import (
	"encoding/json"
	"path/filepath"
	"regexp"
	"testing"
)

// board is what Grafana reads of a dashboard.
type board struct {
	UID, Title    string
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

// boards are the dashboards, by file.
func boards(t *testing.T) map[string]board {
	t.Helper()
	files, err := filepath.Glob(config + "dashboards/*.json")
	if err != nil || len(files) != 3 {
		t.Fatalf("%d dashboards: %v", len(files), err)
	}
	all := map[string]board{}
	for _, file := range files {
		var b board
		if err := json.Unmarshal([]byte(read(t, file)), &b); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		all[file] = b
	}
	return all
}

// Grafana draws every panel: it has a unit, a description, the variable as its data
// source, and no type that Grafana has dropped.
func TestBoards_AreWhole(t *testing.T) {
	t.Parallel()
	for name, board := range boards(t) {
		if board.UID == "" || board.SchemaVersion < 41 || board.Templating.List[0].Type != "datasource" {
			t.Errorf("%s: uid %q, schema %d, variables %v", name, board.UID, board.SchemaVersion, board.Templating.List)
		}
		taken, ids := map[[2]int]string{}, map[int]string{}
		for _, p := range board.Panels {
			if ids[p.ID] != "" {
				t.Errorf("%s: %q has the id of %q: %d", name, p.Title, ids[p.ID], p.ID)
			}
			ids[p.ID] = p.Title
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
