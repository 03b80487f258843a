package controller_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/reschedule-dev/reschedule/sdk"
	"github.com/reschedule-dev/reschedule/sdk/controller"
)

var reconciler = reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) {
	return reconcile.Result{RequeueAfter: 5 * time.Minute}, nil
})

// The main function of an operator.
func ExampleNewManager() {
	mgr, err := controller.NewManager(ctrl.GetConfigOrDie(), ctrl.Options{}, controller.WithAudience("my-operator"))
	if err == nil {
		err = ctrl.NewControllerManagedBy(mgr).For(&corev1.ConfigMap{}).Complete(reconciler)
	}
	if err == nil {
		err = mgr.Start(ctrl.SetupSignalHandler())
	}
	fmt.Fprintln(os.Stderr, err)
}

// An operator whose requests have keys of their own, also the requests that a map
// function finds.
func ExampleWithClient() {
	source, err := sdk.FromEnv()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return
	}
	mgr, err := controller.NewManager(ctrl.GetConfigOrDie(), ctrl.Options{}, controller.WithClient(source))
	fmt.Fprintln(os.Stderr, mgr, err)
}

// A reconciler without a manager.
func ExampleHandler() {
	http.Handle("/", controller.Handler(reconciler))
}
