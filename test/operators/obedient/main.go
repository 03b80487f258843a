// Command obedient is an operator that is written with controller-runtime in the usual
// way, and does what its objects say; see [step]. It reports the start and the end of
// each run to the recorder, and keeps nothing: its pod may go between two runs.
//
// FOR names its controllers: configmaps, for ConfigMaps with Leases of their own, and
// namespaces. WITH are the options of its manager, and NAMESPACE is where its objects
// are.
package main

import (
	"cmp"
	"fmt"
	"log"
	"os"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/reschedule-dev/reschedule/sdk"
	"github.com/reschedule-dev/reschedule/sdk/controller"
)

func main() {
	ctrl.SetLogger(zap.New())
	if err := serve(); err != nil {
		log.Fatal(err)
	}
}

func serve() error {
	namespace := os.Getenv("NAMESPACE")
	options, err := choices(os.Getenv("WITH"))
	if err != nil {
		return fmt.Errorf("WITH: %w", err)
	}
	mgr, err := controller.NewManager(ctrl.GetConfigOrDie(), ctrl.Options{
		Cache:      cache.Options{DefaultNamespaces: map[string]cache.Config{namespace: {}}},
		Controller: config.Controller{MaxConcurrentReconciles: 10},
	}, options...)
	if err != nil {
		return err
	}
	to := recorder{url: os.Getenv("RECORDER")}
	for controllers := range strings.FieldsSeq(cmp.Or(os.Getenv("FOR"), "configmaps")) {
		p := performer{Client: mgr.GetClient(), recorder: to, pod: os.Getenv("HOSTNAME")}
		b := ctrl.NewControllerManagedBy(mgr)
		switch controllers {
		case "configmaps":
			p.kind, p.object = "ConfigMap", func() client.Object { return &corev1.ConfigMap{} }
			b.For(p.object(), labelled("e2e", "object")).Owns(&coordinationv1.Lease{})
		case "namespaces":
			p.kind, p.object = "Namespace", func() client.Object { return &corev1.Namespace{} }
			b.For(p.object(), labelled("e2e", namespace))
		default:
			return fmt.Errorf("FOR: there is no controller %q", controllers)
		}
		if err := b.Complete(p); err != nil {
			return err
		}
	}
	return mgr.Start(ctrl.SetupSignalHandler())
}

// labelled is the predicate that lets objects with a label pass.
func labelled(name, value string) builder.ForOption {
	return builder.WithPredicates(predicate.NewPredicateFuncs(func(o client.Object) bool { return o.GetLabels()[name] == value }))
}

// choices reads options such as "client audience=operator".
func choices(words string) (options []controller.Option, err error) {
	for word := range strings.FieldsSeq(words) {
		name, value, _ := strings.Cut(word, "=")
		if name == "audience" {
			options = append(options, controller.WithAudience(value))
			continue
		}
		switch name {
		case "client":
			source, err := sdk.FromEnv()
			if err != nil {
				return nil, err
			}
			options = append(options, controller.WithClient(source))
		case "cached-reads":
			options = append(options, controller.WithCachedReads())
		case "replicas":
			options = append(options, controller.WithReplicas())
		default:
			return nil, fmt.Errorf("there is no option %q", word)
		}
	}
	return options, nil
}
