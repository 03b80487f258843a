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

// script is the annotation that says what is done with an object: a step for
// each run, with commas between them. The last one is for all that follow. A
// script that was changed begins anew.
const script = "e2e/script"

// performer reconciles the objects of a kind as they say.
type performer struct {
	client.Client
	recorder recorder
	pod      string
	kind     string
	object   func() client.Object
}

// Reconcile implements reconcile.Reconciler. A run that the recorder could not be
// told of has failed, or the test would take it for one that is lost.
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
	if err := p.recorder.tell(ctx, r); err != nil {
		return reconcile.Result{}, err
	}
	result, failure := p.perform(ctx, r.Data.Step, o)
	r.End = time.Now()
	if err := p.recorder.tell(ctx, r); err != nil {
		return reconcile.Result{}, err
	}
	for word := range strings.FieldsSeq(r.Data.Step) {
		switch name, value, _ := strings.Cut(word, "="); {
		case name == "panic":
			panic("as it was told")
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

// next finds the step of a run: it is the one after those of all runs that
// began, in whatever process.
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
//	work=2s         takes so long
//	own             makes a Lease of the object's name and its own, if there is none
//	term            asks the process to end, as the kubelet does
//	exit            ends the process
//	exit=2ms        ends it so long after the end was told, when it is on its way to the answer
//	after=2s        the result
//	requeue
//	error
//	terminal
//	panic           when the end was told
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
			failure = errors.New("as it was told")
		case "terminal":
			failure = reconcile.TerminalError(errors.New("as it was told"))
		case "gone", "ok", "panic":
		default:
			return result, reconcile.TerminalError(fmt.Errorf("there is no word %q", word))
		}
	}
	return result, failure
}

// die ends the process and has a new one in its place: as when it is killed,
// but without the kubelet's waits before it starts a container again, which
// grow.
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
