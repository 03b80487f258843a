package watch

import "sync"

// twins are the resources of a source whose keys are the keys of the objects of one kind, with other selectors and
// changes. An object that leaves one selector may match another one, so they report one after the other: the deletion
// that one of them sees is none while another has a mark.
type twins struct {
	mu  sync.Mutex
	all []*resource
}

// pair finds the twins of a source.
func pair(resources []*resource) {
	type kind struct{ group, name string }
	of := map[kind]*twins{}
	for _, r := range resources {
		if !r.own() {
			continue
		}
		k := kind{r.cfg.Group, r.cfg.Kind}
		if of[k] == nil {
			of[k] = &twins{}
		}
		of[k].all = append(of[k].all, r)
	}
	for _, t := range of {
		for _, r := range t.all {
			if len(t.all) > 1 {
				r.twins = t
			}
		}
	}
}

// correct makes changes of the deletions in the batch whose objects a twin knows. The caller holds the lock.
func (r *resource) correct(b *batch) error {
	for i := range b.changes {
		c := &b.changes[i]
		if c.verb != deleted {
			continue
		}
		for _, of := range r.twins.all {
			m, ok, err := r.s.marks.Get(of.id, c.object)
			if err != nil {
				return err
			}
			if of == r || !ok {
				continue
			}
			c.verb = updated
			now := &observed{path: c.object, uid: m.UID, version: c.version}
			for j := range c.items {
				req := &c.items[j].Request
				req.UID, req.Event = usable(m.UID), r.event(updated, now, target{key: c.items[j].Key})
			}
			break
		}
	}
	return nil
}
