// Package boards makes the Grafana dashboards of config/monitoring.
//
// It guarantees the same bytes for the same source: ids and places follow from the order
// of the panels. Nothing names a data source of one installation.
//
// How it works: a board is rows of panels; a panel is a title, a description, a unit and
// queries. The rest of Grafana's format is the same for all panels. The test in
// test/monitoring writes the files, and runs every query against a real Prometheus.
//
// It leaves to others: what the metrics mean (docs/operations.md), and alerts
// (config/monitoring/rules).
package boards

import (
	"bytes"
	"encoding/json"
)

// schemaVersion is of Grafana 11; later ones read it.
const schemaVersion = 41

// Board is a dashboard.
type Board struct {
	UID, Title, Description string
	Variables               []Variable
	Rows                    []Row
}

// Variable is a choice at the top of a board: the values of a label.
type Variable struct {
	Name, Label, Query string
	Multi              bool // several values, and all of them
}

// Row is a heading with panels below it.
type Row struct {
	Title  string
	Panels []Panel
}

// Panel shows queries, as lines over time, or as the last values where Stat is set.
type Panel struct {
	Title, Description string
	Unit               string // Grafana's name of it
	Stat               bool
	Queries            []Query
}

// Query is an expression, with the legend of its series.
type Query struct{ Expr, Legend string }

// All returns the dashboards, by the name of their file.
func All() map[string]Board {
	return map[string]Board{"reschedule-overview.json": overview, "reschedule-source.json": source, "reschedule-group.json": group}
}

type object = map[string]any

var datasource = object{"type": "prometheus", "uid": "${datasource}"}

// JSON is the file of the board.
func (b Board) JSON() ([]byte, error) {
	variables := []any{object{
		"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "refresh": 1, "hide": 0,
	}}
	for _, v := range b.Variables {
		variables = append(variables, object{
			"name": v.Name, "label": v.Label, "type": "query", "datasource": datasource, "refresh": 2, "sort": 1, "hide": 0,
			"definition": v.Query, "query": object{"query": v.Query, "refId": v.Name},
			"multi": v.Multi, "includeAll": v.Multi, "allValue": ".*",
		})
	}
	var panels []any
	id, y := 0, 0
	add := func(o object) {
		id++
		o["id"] = id
		panels = append(panels, o)
	}
	for _, row := range b.Rows {
		add(object{"type": "row", "title": row.Title, "collapsed": false, "panels": []any{}, "gridPos": object{"x": 0, "y": y, "w": 24, "h": 1}})
		y++
		x, height := 0, 0
		for _, p := range row.Panels {
			w, h := 8, 8
			if p.Stat {
				w, h = 4, 4
			}
			if x+w > 24 {
				x, y, height = 0, y+height, 0
			}
			add(p.json(object{"x": x, "y": y, "w": w, "h": h}))
			x, height = x+w, max(height, h)
		}
		y += height
	}
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err := e.Encode(object{
		"uid": b.UID, "title": b.Title, "description": b.Description, "tags": []string{"reschedule", "knative"},
		"schemaVersion": schemaVersion, "version": 1, "editable": true, "graphTooltip": 1, "refresh": "30s", "timezone": "",
		"time":       object{"from": "now-3h", "to": "now"},
		"templating": object{"list": variables},
		"annotations": object{"list": []any{object{
			"name": "Alerts", "datasource": datasource, "enable": true, "iconColor": "red",
			"expr": `ALERTS{alertname=~"Reschedule.*", alertstate="firing"}`, "titleFormat": "{{alertname}}",
		}}},
		"links": []any{object{
			"type": "dashboards", "title": "RescheduleSource", "tags": []string{"reschedule"}, "asDropdown": false,
			"includeVars": true, "keepTime": true, "targetBlank": false,
		}},
		"panels": panels,
	})
	return out.Bytes(), err
}

func (p Panel) json(place object) object {
	var targets []any
	for i, q := range p.Queries {
		targets = append(targets, object{
			"refId": string(rune('A' + i)), "datasource": datasource, "expr": q.Expr, "legendFormat": q.Legend,
			"range": !p.Stat, "instant": p.Stat,
		})
	}
	o := object{
		"type": "timeseries", "title": p.Title, "description": p.Description, "datasource": datasource, "gridPos": place, "targets": targets,
		"fieldConfig": object{
			"defaults": object{
				"unit": p.Unit, "min": 0,
				"custom": object{"drawStyle": "line", "lineWidth": 1, "fillOpacity": 10, "showPoints": "never", "spanNulls": false},
			},
			"overrides": []any{},
		},
		"options": object{
			"legend":  object{"displayMode": "list", "placement": "bottom", "showLegend": true},
			"tooltip": object{"mode": "multi", "sort": "desc"},
		},
	}
	if p.Stat {
		o["type"] = "stat"
		o["fieldConfig"] = object{"defaults": object{"unit": p.Unit}, "overrides": []any{}}
		text := "auto"
		if p.Unit == "string" {
			text = "name"
		}
		o["options"] = object{
			"reduceOptions": object{"calcs": []string{"lastNotNull"}, "values": false, "fields": ""},
			"textMode":      text, "colorMode": "value", "graphMode": "none",
		}
	}
	return o
}
