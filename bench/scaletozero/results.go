package main

import (
	"math"
	"strings"
	"time"
)

// results has one part for each step, so one step can be measured again without
// the others.
type results struct {
	Conditions conditions
	Idle       *idle      `json:",omitempty"`
	Wakes      *wakes     `json:",omitempty"`
	Run        *sparseRun `json:",omitempty"`
}

// conditions describe the cluster: a figure means nothing without them.
type conditions struct {
	Node, Meter string
	Versions    []string
	Commit      string
}

// idle is the usage of each part while nothing is due.
type idle struct {
	TakenAt time.Time
	Seconds float64
	Parts   map[string]partIdle
}

type partIdle struct {
	Pods float64   // on average: a pod may be replaced meanwhile
	Rate cost      // a second, of all of them
	Each []float64 // memory of each, in bytes, with its program
}

// wakes is the cost of deliveries that start pods.
type wakes struct {
	TakenAt time.Time
	Seconds float64
	Asked   map[string]int       // deliveries, for each form
	Pods    map[string][]podLife // that the deliveries started
	Extra   map[string]float64   // CPU seconds a delivery of a part, above its idle usage
	Late    map[string][]float64 // seconds from the due time to the deletion
	CPU     map[string]float64   // of the resident: CPU seconds a delivery
}

// podLife is the whole life of one pod.
type podLife struct {
	Seconds float64
	Pod     cost
	Shim    cost
}

// sparseRun is the usage in a long time with few deliveries.
type sparseRun struct {
	TakenAt time.Time
	Seconds float64
	Asked   map[string]int
	Pods    map[string]int
	There   map[string]float64 // seconds that these pods existed, added up
	Used    map[string]cost    // of the operators and their ApiServerSources, with the runtime's processes beside the pods
	Late    map[string][]float64
	Traces  map[string][][2]float64 // of one operator of a form: seconds, bytes
}

// idleOf adds up the usage in a time without deliveries.
func idleOf(used []usage, from, to time.Time) *idle {
	seconds := to.Sub(from).Seconds()
	i := &idle{TakenAt: from, Seconds: seconds, Parts: map[string]partIdle{}}
	for _, u := range used {
		p := i.Parts[u.part]
		p.Pods += u.seconds / seconds
		p.Rate = p.Rate.plus(u.times(1 / seconds))
		p.Each = append(p.Each, math.Round(u.bytes()/u.seconds))
		i.Parts[u.part] = p
	}
	return i
}

// each returns the idle cost a second of one of the part's pods, with the runtime's process beside it.
func (i *idle) each(part string) cost {
	p, shim := i.Parts[part], i.Parts[shimOf+" "+part]
	if p.Pods == 0 {
		return cost{}
	}
	c := p.Rate.times(1 / p.Pods)
	if shim.Pods > 0 { // on average: it may be less than one
		c = c.plus(shim.Rate.times(1 / shim.Pods))
	}
	return c
}

// pod returns the idle cost a second of one of the part's pods alone.
func (i *idle) pod(part string) cost {
	p := i.Parts[part]
	return p.Rate.times(1 / max(p.Pods, 1))
}

// all returns the idle cost a second of several parts, with the runtime's processes beside their pods.
func (i *idle) all(parts ...string) cost {
	var c cost
	for _, p := range parts {
		c = c.plus(i.Parts[p].Rate).plus(i.Parts[shimOf+" "+p].Rate)
	}
	return c
}

// wakesOf adds up the usage in a time with deliveries, above the idle usage.
func wakesOf(used []usage, from, to time.Time, idle *idle, asked map[string]int) *wakes {
	seconds := to.Sub(from).Seconds()
	w := &wakes{
		TakenAt: from, Seconds: seconds, Asked: asked, Pods: map[string][]podLife{}, Extra: map[string]float64{}, CPU: map[string]float64{},
	}
	deliveries := 0
	for form, n := range asked {
		if form != resident {
			deliveries += n
		}
	}
	shims := map[string]cost{}
	totals := map[string]cost{}
	for _, u := range used {
		totals[u.part] = totals[u.part].plus(u.cost)
		if u.kind == shimOf {
			shims[u.name] = u.cost
		}
	}
	for _, u := range used {
		if u.kind == podOf && u.complete && atZeroForm(u.part) {
			w.Pods[u.part] = append(w.Pods[u.part], podLife{Seconds: u.seconds, Pod: u.cost, Shim: shims[u.name]})
		}
	}
	for name, total := range totals {
		extra := total.CPU - idle.Parts[name].Rate.CPU*seconds
		switch of := strings.TrimPrefix(name, shimOf+" "); {
		case name == resident:
			w.CPU[resident] = extra / float64(max(asked[resident], 1))
		case !atZeroForm(of):
			w.Extra[name] = extra / float64(max(deliveries, 1))
		}
	}
	return w
}

// of returns the cost of one delivery in the operator itself: all its pods, over all deliveries.
func (w *wakes) of(form string) cost {
	if form == resident {
		return cost{CPU: w.CPU[resident]}
	}
	var sum cost
	for _, life := range w.Pods[form] {
		sum = sum.plus(life.Pod).plus(life.Shim)
	}
	return sum.times(1 / float64(max(w.Asked[form], 1)))
}

// life returns the seconds that the pod of a delivery exists.
func (r *results) life(form string) float64 {
	sum := 0.0
	for _, life := range r.Wakes.Pods[form] {
		sum += life.Seconds
	}
	return sum / float64(max(r.Wakes.Asked[form], 1))
}

// hour returns the cost of one operator in an hour with so many deliveries, without shared parts.
func (r *results) hour(form string, deliveries float64) cost {
	c := r.Wakes.of(form).times(deliveries)
	if form == resident {
		return c.plus(r.Idle.each(resident).times(3600))
	}
	return c
}

// from returns the least number of operators that pays: each saves so many bytes, and all share so many.
func from(saved, share float64) (int, bool) {
	if saved <= 0 {
		return 0, false
	}
	return int(math.Floor(share/saved)) + 1, true
}

// runOf adds up the usage in a time with few deliveries.
func runOf(used []usage, began, ended time.Time, asked map[string]int) *sparseRun {
	r := &sparseRun{
		TakenAt: began, Seconds: ended.Sub(began).Seconds(), Asked: asked,
		Pods: map[string]int{}, There: map[string]float64{}, Used: map[string]cost{}, Traces: map[string][][2]float64{},
	}
	for _, u := range used {
		if name := podPart(u.pod); isForm(name) || name == watcher || name == sharedWatcher {
			r.Used[name] = r.Used[name].plus(u.cost)
			if u.kind == podOf {
				r.Pods[name]++
				r.There[name] += u.seconds
			}
		}
	}
	return r
}

// foretold computes the usage of the run from idle and wakes.
func (r *results) foretold(part string) cost {
	c := r.Wakes.of(part).times(float64(r.Run.Asked[part]))
	switch part {
	case resident, watcher, sharedWatcher:
		c = c.plus(r.Idle.each(part).times(r.Run.There[part]))
	}
	return c
}
