package watch

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/watch/objects"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/expression"
)

// target is a key that an object maps to, with the uid of the object of that name, ""
// if it is not known.
type target struct {
	key, uid string
	hearsay  bool // the uid is what another object says
	watched  bool // the source watches the object of the key by itself
	final    bool // the source watches the kind of the key, and does not know its object
}

// keyOf is the key of an object: Kind/namespace/name, or Kind//name.
func keyOf(kind, namespace, name string) string { return kind + "/" + namespace + "/" + name }

// keyOfPath is the key of an object by its path.
func keyOfPath(kind, path string) string {
	if !strings.Contains(path, "/") {
		path = "/" + path
	}
	return kind + "/" + path
}

// pathOfKey is the reverse of keyOfPath.
func pathOfKey(key string) (kind, path string) {
	kind, path, _ = strings.Cut(key, "/")
	return kind, strings.TrimPrefix(path, "/")
}

// namespaceOf is the namespace of a path.
func namespaceOf(path string) string {
	namespace, _, ok := strings.Cut(path, "/")
	if !ok {
		return ""
	}
	return namespace
}

// groupOf is the group of an apiVersion.
func groupOf(apiVersion string) string {
	group, _, ok := strings.Cut(apiVersion, "/")
	if !ok {
		return ""
	}
	return group
}

// maxOwners bounds the owners of one object, as expressions bound their keys.
const maxOwners = 64

// ownerTargets are the keys of the object's owners of a group and kind. The version
// does not matter, nor whether the owner is marked as controller. More reports that it has
// more owners than that.
func ownerTargets(o *objects.Object, group, kind string, namespaced bool) (targets []target, more bool) {
	for _, owner := range o.Owners {
		if owner.Kind != kind || groupOf(owner.APIVersion) != group {
			continue
		}
		if more = len(targets) == maxOwners; more {
			break
		}
		namespace := ""
		if namespaced {
			namespace = o.Namespace
		}
		if key := keyOf(kind, namespace, owner.Name); schedule.ValidateKey(key) == nil {
			targets = append(targets, target{key: key, uid: usable(owner.UID), hearsay: true})
		}
	}
	return targets, more
}

// ofWorkload reports whether an object is the workload of a source without a sink, or one of its pods or
// their ReplicaSet: each start and each end of the workload changes them, and would start it again.
func ofWorkload(o *objects.Object, kind objects.Resource, src *schedule.Spec) bool {
	w := &src.Scale
	if !w.Sinkless || o.Namespace != src.Namespace {
		return false
	}
	if kind.Group == w.Group() && kind.Kind == w.Kind && o.Name == w.Name {
		return true
	}
	return slices.ContainsFunc(o.Owners, func(owner objects.Owner) bool {
		if owner.Kind != "ReplicaSet" || groupOf(owner.APIVersion) != "apps" {
			return groupOf(owner.APIVersion) == w.Group() && owner.Kind == w.Kind && owner.Name == w.Name
		}
		hash, ok := strings.CutPrefix(owner.Name, w.Name+"-")
		return ok && (o.Labels["pod-template-hash"] == hash || o.Labels["rollouts-pod-template-hash"] == hash)
	})
}

// known completes the targets of another object's change by what the source watches itself. The uid in an
// ownerReference may be of an owner that was made again, or made up: only the uid of the mark is right. With another
// one on the key, the owner's own event would take the place of what a caller scheduled. A kind that is watched and
// has no mark of the object, though all its lists were complete, has no such object: its key is woken once more and
// keeps no timer, as after a deletion.
func (r *resource) known(targets []target) error {
	if r.own() {
		return nil
	}
	r.s.mu.Lock()
	all := r.s.resources
	r.s.mu.Unlock()
	for i := range targets {
		t := &targets[i]
		kind, path := pathOfKey(t.key)
		if path == "" {
			continue
		}
		incomplete := false
		for _, of := range all {
			if of.cfg.Kind != kind || !of.own() || r.cfg.OwnerKind != "" && of.cfg.Group != r.cfg.OwnerGroup {
				continue
			}
			m, ok, err := r.s.marks.Get(of.id, path)
			if err != nil {
				return err
			}
			if t.hearsay {
				t.uid = ""
			}
			if ok {
				t.watched, t.final = true, false
				if t.hearsay {
					t.uid, t.hearsay = m.UID, false
				}
				break
			}
			if _, complete := of.rows.covers(namespaceOf(path), of.cfg.Selector); !complete {
				incomplete = true
			}
			t.final = !incomplete
		}
	}
	return nil
}

// own reports that the keys of the resource are the keys of its objects.
func (r *resource) own() bool { return r.cfg.Key == "" && r.cfg.OwnerKind == "" }

// usable is a uid as a schedule may have it, or none: the API server takes any text for the uid of an
// owner, also one of 200 KB.
func usable(uid string) string {
	if schedule.ValidateText("uid", uid, schedule.MaxUIDBytes) != nil {
		return ""
	}
	return uid
}

// expressionTargets are the keys that the expression yields.
func expressionTargets(ctx context.Context, e *expression.WatchKey, r objects.Resource, o *objects.Object) ([]target, error) {
	keys, err := e.Eval(ctx, map[string]any{"apiVersion": r.APIVersion(), "kind": r.Kind, "metadata": o.Metadata})
	if err != nil {
		return nil, err
	}
	var targets []target
	for _, key := range keys {
		if err := schedule.ValidateKey(key); err != nil {
			return nil, fmt.Errorf("yields a key that cannot be used: %w", err)
		}
		targets = append(targets, target{key: key})
	}
	return targets, nil
}
