package command

import (
	"context"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// calling are the resources with which the API server calls a Service.
var calling = []schema.GroupVersionResource{
	{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingwebhookconfigurations"},
	{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "mutatingwebhookconfigurations"},
	{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"},
	{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"},
}

// monitors are the resources with which the Prometheus operator scrapes pods. Most clusters do not have them.
var monitors = []schema.GroupVersionResource{
	{Group: "monitoring.coreos.com", Version: "v1", Resource: "servicemonitors"},
	{Group: "monitoring.coreos.com", Version: "v1", Resource: "podmonitors"},
}

// pageSize bounds a page of a list: a CustomResourceDefinition may have a megabyte.
const pageSize = 50

// each calls visit with each object of some resources. Of resources that may not be listed it says what is not known.
func (s inspector) each(ctx context.Context, all []schema.GroupVersionResource, namespace string, seen *observation, what string, visit func(schema.GroupVersionResource, *unstructured.Unstructured)) error {
	var hidden []string
	for _, of := range all {
		page := metav1.ListOptions{Limit: pageSize}
		for {
			list, err := s.api.Resource(of).Namespace(namespace).List(ctx, page)
			if apierrors.IsForbidden(err) {
				hidden = append(hidden, of.Resource)
				break
			}
			if apierrors.IsNotFound(err) { // there is no such kind
				break
			}
			if err != nil {
				return err
			}
			for i := range list.Items {
				visit(of, &list.Items[i])
			}
			if page.Continue = list.GetContinue(); page.Continue == "" {
				break
			}
		}
	}
	if len(hidden) > 0 {
		seen.cannotKnow("%s: you may not list %s.", what, strings.Join(hidden, ", "))
	}
	return nil
}

// callers finds who calls the workload: the API server, those who use its Services, and Prometheus.
func (s inspector) callers(ctx context.Context, target *unstructured.Unstructured, seen *observation) error {
	of := podLabels(target)
	called := map[string]map[string]string{} // the labels of its Services, by name
	services := []schema.GroupVersionResource{{Version: "v1", Resource: "services"}}
	err := s.each(ctx, services, s.namespace, seen, "Whether the API server or another pod calls it", func(_ schema.GroupVersionResource, o *unstructured.Unstructured) {
		selector, _, _ := unstructured.NestedStringMap(o.Object, "spec", "selector")
		if len(selector) > 0 && contains(of, selector) {
			called[o.GetName()] = o.GetLabels()
			seen.services = append(seen.services, o.GetName())
		}
	})
	if err != nil {
		return err
	}
	quiet := slices.Clone(seen.services)
	if len(called) > 0 {
		err = s.each(ctx, calling, "", seen, "Whether the API server calls it", func(_ schema.GroupVersionResource, o *unstructured.Unstructured) {
			for _, c := range callsOf(o.Object) {
				if _, own := called[c.name]; own && c.namespace == s.namespace {
					seen.callers = append(seen.callers, fmt.Sprintf("%s %s calls Service %s%s", o.GetKind(), o.GetName(), c.name, c.policy))
					quiet = slices.DeleteFunc(quiet, func(name string) bool { return name == c.name })
				}
			}
		})
		if err != nil {
			return err
		}
	}
	seen.callers = slices.Compact(seen.callers)
	if len(quiet) > 0 {
		seen.note("Service %s selects its pods: nothing answers there while it sleeps.", strings.Join(quiet, ", "))
	}
	return s.scrapes(ctx, target, called, seen)
}

// call is a Service that the API server calls.
type call struct{ namespace, name, policy string }

// callsOf are the Services that an object of one of the resources names.
func callsOf(o map[string]any) (found []call) {
	add := func(in map[string]any, policy string, path ...string) {
		if ref, ok, _ := unstructured.NestedMap(in, path...); ok {
			namespace, _ := ref["namespace"].(string)
			found = append(found, call{namespace, nameOf(ref), policy})
		}
	}
	hooks, _, _ := unstructured.NestedSlice(o, "webhooks")
	for _, hook := range hooks {
		hook, _ := hook.(map[string]any)
		policy := ""
		if hook["failurePolicy"] != "Ignore" {
			policy = " (failurePolicy Fail)"
		}
		add(hook, policy, "clientConfig", "service")
	}
	add(o, "", "spec", "service")
	add(o, "", "spec", "conversion", "webhook", "clientConfig", "service")
	return found
}

// scrapes notes who reads the metrics of the workload.
func (s inspector) scrapes(ctx context.Context, target *unstructured.Unstructured, services map[string]map[string]string, seen *observation) error {
	var by []string
	if scrape, _, _ := unstructured.NestedString(target.Object, "spec", "template", "metadata", "annotations", "prometheus.io/scrape"); scrape == "true" {
		by = append(by, "annotation prometheus.io/scrape")
	}
	err := s.each(ctx, monitors, "", seen, "Whether Prometheus scrapes it", func(resource schema.GroupVersionResource, o *unstructured.Unstructured) {
		var spec struct {
			Selector          metav1.LabelSelector `json:"selector"`
			NamespaceSelector struct {
				Any        bool     `json:"any"`
				MatchNames []string `json:"matchNames"`
			} `json:"namespaceSelector"`
		}
		raw, _, _ := unstructured.NestedMap(o.Object, "spec")
		if runtime.DefaultUnstructuredConverter.FromUnstructured(raw, &spec) != nil {
			return
		}
		selector, err := metav1.LabelSelectorAsSelector(&spec.Selector)
		in := spec.NamespaceSelector.MatchNames
		if err != nil || !spec.NamespaceSelector.Any && !slices.Contains(in, s.namespace) && (len(in) > 0 || o.GetNamespace() != s.namespace) {
			return
		}
		matches := resource.Resource == "podmonitors" && selector.Matches(labels.Set(podLabels(target)))
		for _, of := range services {
			matches = matches || resource.Resource == "servicemonitors" && selector.Matches(labels.Set(of))
		}
		if matches {
			by = append(by, fmt.Sprintf("%s %s/%s", o.GetKind(), o.GetNamespace(), o.GetName()))
		}
	})
	if err != nil {
		return err
	}
	if len(by) > 0 {
		seen.note("Its metrics are scraped (%s): nothing answers while it sleeps, and an alert about a target that is down would fire.", strings.Join(by, ", "))
	}
	return nil
}

// podLabels are the labels of the workload's pods.
func podLabels(target *unstructured.Unstructured) map[string]string {
	of, _, _ := unstructured.NestedStringMap(target.Object, "spec", "template", "metadata", "labels")
	return of
}

func contains(all, some map[string]string) bool {
	for name, value := range some {
		if all[name] != value {
			return false
		}
	}
	return true
}
