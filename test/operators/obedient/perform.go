package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// script is the annotation with the steps for an object, one for each run, with commas
// between them. The last step is for all later runs. A changed script begins again.
const script = "e2e/script"

// performer reconciles the objects of a kind as they say.
type performer struct {
	client.Client
	recorder recorder
	pod      string
	kind     string
	object   func() client.Object
}

// Reconcile implements reconcile.Reconciler. A run that could not be recorded fails. To
// the test it would be lost otherwise.
func (p performer) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	r := newRun(p.kind+"/"+request.Namespace+"/"+request.Name, p.pod)
	o := p.object()
	if err := p.Get(ctx, request.NamespacedName, o); apierrors.IsNotFound(err) {
		r.Data.Step = "gone"
	} else if err != nil {
		return reconcile.Result{}, err
	} else if err := p.next(ctx, &r, o); err != nil {
		return reconcile.Result{}, err
	}
	if err := p.recorder.record(ctx, r); err != nil {
		return reconcile.Result{}, err
	}
	result, failure := p.perform(ctx, r.Data.Step, o)
	r.End = time.Now()
	if err := p.recorder.record(ctx, r); err != nil {
		return reconcile.Result{}, err
	}
	for word := range strings.FieldsSeq(r.Data.Step) {
		switch name, value, _ := strings.Cut(word, "="); {
		case name == "panic":
			panic("as the script says")
		case name == "exit":
			d, err := time.ParseDuration(value)
			if err != nil {
				return result, err
			}
			time.AfterFunc(d, die)
		}
	}
	return result, failure
}

// next finds the step of a run: the step after the steps of all runs that began, in any
// process.
func (p performer) next(ctx context.Context, r *run, o client.Object) error {
	r.Data.Script, r.Seen = o.GetAnnotations()[script], o.GetResourceVersion()
	runs, err := p.recorder.runs(ctx)
	if err != nil {
		return err
	}
	began := map[string]bool{}
	for _, before := range runs {
		if before.Key == r.Key && before.Data.Script == r.Data.Script {
			began[before.Run] = true
		}
	}
	steps := strings.Split(r.Data.Script, ",")
	r.Data.Step = strings.TrimSpace(steps[min(len(began), len(steps)-1)])
	return nil
}

// perform does the words of a step one after the other:
//
//	work=2s         takes that long
//	own             makes a Lease of the object's name and its own, if there is none
//	term            asks the process to end, as the kubelet does
//	exit            ends the process
//	exit=2ms        ends it that long after the end was recorded, about when it answers
//	after=2s        the result
//	requeue
//	error
//	terminal
//	panic           after the end was recorded
func (p performer) perform(ctx context.Context, step string, o client.Object) (result reconcile.Result, failure error) {
	for word := range strings.FieldsSeq(step) {
		name, value, _ := strings.Cut(word, "=")
		d := time.Duration(0)
		if value != "" {
			var err error
			if d, err = time.ParseDuration(value); err != nil {
				return result, reconcile.TerminalError(err)
			}
		}
		switch name {
		case "work":
			<-time.After(d)
		case "own":
			if err := p.own(ctx, o); err != nil {
				return result, err
			}
		case "term":
			if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
				return result, err
			}
		case "exit":
			if value == "" {
				die()
			}
		case "after":
			result.RequeueAfter = d
		case "requeue":
			result.Requeue = true //nolint:staticcheck // operators still have it
		case "error":
			failure = errors.New("as the script says")
		case "terminal":
			failure = reconcile.TerminalError(errors.New("as the script says"))
		case "gone", "ok", "panic":
		default:
			return result, reconcile.TerminalError(fmt.Errorf("there is no word %q", word))
		}
	}
	return result, failure
}

// die ends the process and starts a new one in its place: like a kill, but without the
// kubelet's growing waits before it starts a container again.
func die() {
	err := syscall.Exec("/proc/self/exe", os.Args, os.Environ())
	panic(err)
}

// own makes the object's Lease.
func (p performer) own(ctx context.Context, o client.Object) error {
	l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: o.GetNamespace(), Name: o.GetName()}}
	if err := controllerutil.SetControllerReference(o, l, p.Scheme()); err != nil {
		return err
	}
	if err := p.Create(ctx, l); !apierrors.IsAlreadyExists(err) {
		return err
	}
	return nil
}
