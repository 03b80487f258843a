package main

import (
	"cmp"
	"slices"
	"strings"
)

// The parts of the bill: costs are added up for each.
const (
	resident   = "resident"   // the operator that runs all the time
	serverless = "serverless" // the operator at zero, as its manifest has it: its source watches
	warmed     = "warmed"     // the same with warm-up
	defaults   = "defaults"   // the same with Knative's own settings
	fed        = "fed"        // the same behind an ApiServerSource of its own
	shared     = "shared"     // the same behind an ApiServerSource for many, with a Broker in between

	watcher       = "watcher"        // an ApiServerSource's pod, for one operator
	sharedWatcher = "shared watcher" // for many

	adapter    = "adapter"    // RescheduleSource's data plane
	controller = "controller" // RescheduleSource's control plane

	activator  = "activator"
	autoscaler = "autoscaler"
	serving    = "serving" // the rest of Knative Serving
	ingress    = "ingress"
	eventing   = "eventing" // Knative Eventing without its Broker
	broker     = "broker"   // Knative's own Broker on in-memory channels

	kubernetes = "kubernetes" // the processes of the node and of the control plane
)

// namespacePrefix begins the name of every namespace that this program makes.
const namespacePrefix = "expiry-"

// ingressNamespaces has the namespaces of the ingresses that Knative documents, and of Traefik.
var ingressNamespaces = []string{"kourier-system", "istio-system", "contour-external", "contour-internal", "traefik"}

// part returns the part of a subject, or "" for a pod of another application,
// which is not counted.
func part(s subject, pod metadata) string {
	switch s.kind {
	case processOf:
		return kubernetes
	case shimOf:
		if of := podPart(pod); of != "" {
			return shimOf + " " + of
		}
		return ""
	}
	return podPart(pod)
}

func podPart(pod metadata) string {
	if form, found := strings.CutPrefix(pod.Namespace, namespacePrefix); found {
		form, _, _ = strings.Cut(form, "-")
		switch {
		case pod.Labels["eventing.knative.dev/source"] != "" && form == shared:
			return sharedWatcher
		case pod.Labels["eventing.knative.dev/source"] != "":
			return watcher
		}
		return form
	}
	if slices.Contains(ingressNamespaces, pod.Namespace) {
		return ingress
	}
	switch pod.Namespace {
	case "knative-serving":
		switch {
		case strings.HasPrefix(pod.Name, activator):
			return activator
		case strings.HasPrefix(pod.Name, autoscaler+"-") && !strings.HasPrefix(pod.Name, "autoscaler-hpa"):
			return autoscaler
		case strings.Contains(pod.Name, "gateway"), strings.Contains(pod.Name, "traefik"):
			return ingress
		}
		return serving
	case "knative-eventing":
		switch {
		case pod.Labels["app.kubernetes.io/component"] == "reschedule-adapter":
			return adapter
		case pod.Labels["app.kubernetes.io/component"] == "reschedule-controller":
			return controller
		case strings.HasPrefix(pod.Name, "imc-"), strings.HasPrefix(pod.Name, "mt-broker-"):
			return broker
		}
		return eventing
	}
	return ""
}

func bySubject(a, b subject) int {
	return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.name, b.name))
}
