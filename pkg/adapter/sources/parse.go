package sources

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/ceilings"
)

const (
	// MaxFileBytes bounds a file of manifests, so that a wrong path costs a
	// bounded amount.
	MaxFileBytes = 16 << 20
	// maxProblems bounds the reported problems of one file.
	maxProblems = 50
)

// Cut is a field of a source in a file that asks for more than its ceiling allows.
type Cut struct {
	Source string // its path
	ceilings.Cut
}

// ReadFile reads the sources of a file, in its order, with their limits cut to
// the ceilings, and what was cut. The error names everything that is wrong with it.
func ReadFile(path string, config *ceilings.Config) ([]*schedule.Spec, []Cut, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, fmt.Errorf("sources: opening the file: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, MaxFileBytes+1))
	if err != nil {
		return nil, nil, fmt.Errorf("sources: reading the file: %w", err)
	}
	if n := len(data); n > 0 && n <= MaxFileBytes && data[n-1] != '\n' && data[n-1] != '\r' && !json.Valid(data) {
		return nil, nil, fmt.Errorf("sources: %s: its last line has no end: the file may be cut; write it whole, with a line end", path)
	}
	return parse(path, data, config)
}

// Parse reads the sources of a file's content; name stands for the file in
// errors.
func Parse(name string, data []byte, config *ceilings.Config) ([]*schedule.Spec, error) {
	all, _, err := parse(name, data, config)
	return all, err
}

func parse(name string, data []byte, config *ceilings.Config) ([]*schedule.Spec, []Cut, error) {
	if len(data) > MaxFileBytes {
		return nil, nil, fmt.Errorf("sources: %s: is more than %d MiB", name, MaxFileBytes>>20)
	}
	p := parser{file: name, ceilings: config, byUID: map[string]string{}, byPath: map[string]string{}}
	documents(data, p.document)
	if p.errs != nil {
		if more := p.problems - len(p.errs); more > 0 {
			p.errs = append(p.errs, fmt.Errorf("sources: %s: and %d problems more", name, more))
		}
		return nil, nil, errors.Join(p.errs...)
	}
	if len(p.sources) == 0 && !p.list {
		return nil, nil, fmt.Errorf("sources: %s: holds no RescheduleSource; to serve none and delete all schedules, write an empty List: "+
			`{"apiVersion": "v1", "kind": "List", "items": []}`, name)
	}
	return p.sources, p.cuts, nil
}

// parser collects the sources and problems of one file.
type parser struct {
	file          string
	ceilings      *ceilings.Config
	sources       []*schedule.Spec
	cuts          []Cut
	list          bool              // it has a List, maybe an empty one
	byUID, byPath map[string]string // where it was seen first
	problems      int
	errs          []error // the first of them
}

func (p *parser) refuse(where string, errs ...error) {
	for _, err := range errs {
		if p.problems++; p.problems <= maxProblems {
			p.errs = append(p.errs, fmt.Errorf("sources: %s: %s: %w", p.file, where, err))
		}
	}
}

// document takes one document of the file, as JSON.
func (p *parser) document(number int, raw []byte, err error) {
	where := fmt.Sprintf("document %d", number)
	if err != nil {
		p.refuse(where, err)
		return
	}
	head := peek(raw)
	if head.isList() {
		p.list = true
		list, errs := decodeList(raw)
		p.refuse(where, errs...)
		for i, item := range list {
			p.object(fmt.Sprintf("%s, item %d", where, i+1), item)
		}
		return
	}
	p.object(where, raw)
}

// object takes one RescheduleSource, as JSON.
func (p *parser) object(where string, raw []byte) {
	head := peek(raw)
	where += head.label()
	o, errs := decodeObject(raw)
	if len(errs) > 0 {
		p.refuse(where, errs...)
		return
	}
	errs = checkMeta(o)
	targets, more := specTargets(o)
	if o.Spec.Watch != nil {
		more = append(more, schedule.Invalid("spec.watch", "needs a cluster; a standalone adapter has no API server to watch"))
	}
	if o.Spec.Scale != nil {
		more = append(more, schedule.Invalid("spec.scale", "needs a cluster; a standalone adapter has no workload to scale"))
	}
	src, cuts, rest := convert(o, targets, p.ceilings)
	if errs = append(append(errs, more...), rest...); len(errs) > 0 {
		p.refuse(where, errs...)
		return
	}
	if first, seen := p.byPath[src.Path()]; seen {
		p.refuse(where, fmt.Errorf("metadata.name: %s already belongs to %s", src.Path(), first))
		return
	}
	if first, seen := p.byUID[src.UID]; seen {
		p.refuse(where, fmt.Errorf("metadata.uid: %q already belongs to %s", src.UID, first))
		return
	}
	p.byPath[src.Path()], p.byUID[src.UID] = where, where
	p.sources = append(p.sources, src)
	for _, c := range cuts {
		p.cuts = append(p.cuts, Cut{src.Path(), c})
	}
}
