package command

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/reschedule-dev/reschedule/cli/internal/why"
)

// finding is a line of doctor.
type finding struct {
	Subject string `json:"subject"`
	OK      bool   `json:"ok"`                // no problem was found
	Unknown bool   `json:"unknown,omitempty"` // the check could not be made
	Cause   string `json:"cause,omitempty"`
	Detail  string `json:"detail"`
}

// doctor is the command of that name.
func newDoctor(p *program) *cobra.Command {
	var o *output
	var all bool
	var timeout time.Duration
	c := p.command("doctor [NAME...]", "Look at the adapter, your rights and each source, and say what is wrong", `
$ doctor
$ doctor -A`,
		nil, func(cmd *cobra.Command, args []string) error {
			if err := allOrNames(all, args); err != nil {
				return err
			}
			s, err := p.session()
			if err != nil {
				return err
			}
			defer s.close()
			var findings []finding
			if err := limited(cmd.Context(), timeout, func(ctx context.Context) error {
				findings, err = s.diagnose(ctx, args, all)
				return err
			}); err != nil {
				return err
			}
			return p.printFindings(o, findings)
		})
	c.Flags().BoolVarP(&all, "all-namespaces", "A", false, "the sources of all namespaces")
	timeoutFlag(c, &timeout)
	c.ValidArgsFunction = p.completeSources
	o = outputFlags(c, "json", "yaml", "name", "ndjson")
	return c
}

func (e *env) printFindings(o *output, findings []finding) error {
	l := o.list(e.out, "", columns("", "Subject", "Finding"))
	problems := 0
	for _, f := range findings {
		mark := "ok"
		switch {
		case !f.OK:
			problems++
			mark = "PROBLEM"
		case f.Unknown:
			mark = "unknown"
		}
		if err := l.add(f, f.Subject, mark, f.Subject, f.Detail); err != nil {
			return err
		}
	}
	if err := l.end(e.err, "Nothing to look at."); err != nil {
		return err
	}
	if problems > 0 {
		return &exitError{exitProblem, fmt.Errorf("%d of %d checks found a problem", problems, len(findings))}
	}
	return nil
}

// diagnose makes the checks.
func (s *session) diagnose(ctx context.Context, names []string, all bool) ([]finding, error) {
	objects, err := s.chosen(ctx, names, all)
	if apierrors.IsNotFound(err) && len(names) == 0 {
		return []finding{{Subject: "installation", Detail: "The API server knows no RescheduleSources: install the release manifest."}}, nil
	}
	if err != nil {
		return nil, err
	}
	var found []finding
	var adapter *why.Adapter
	if s.config != nil {
		adapter = s.adapterFacts(ctx)
		found = append([]finding{adapterFinding(adapter, len(objects))}, memberFindings(s.measured(ctx, adapter).group)...)
		found = append(found, s.rights(ctx, objects)...)
	}
	sources := make([]finding, len(objects))
	concurrently(len(objects), func(i int) { sources[i] = findingOf(s.target(ctx, objects[i], objects, adapter).Ask(ctx, "")) })
	return append(found, sources...), interrupted(ctx)
}

// findingOf is what why says of a source.
func findingOf(f why.Facts) finding {
	a := why.Explain(f)
	return finding{Subject: "source " + f.Namespace + "/" + f.Name, OK: !a.Problem, Cause: string(a.Cause), Detail: a.Sentence}
}

// adapterFinding judges the adapter by itself: without a source it has no pod.
func adapterFinding(a *why.Adapter, sources int) finding {
	f := finding{Subject: "adapter", OK: true}
	switch {
	case a == nil:
		f.Unknown, f.Detail = true, "You may not look at it (config/cli grants that)."
	case a.Missing:
		f.OK, f.Detail = false, "There is no StatefulSet "+adapterName+": install the release manifest, or name its namespace with --system-namespace."
	case a.Wanted == 0 && sources == 0:
		f.Detail = "0 replicas, as there is no source."
	case a.Ready < a.Wanted || a.Wanted == 0:
		f.OK, f.Detail = false, fmt.Sprintf("%d of %d pods are ready. %s", a.Ready, a.Wanted, a.Waiting)
	default:
		f.Detail = fmt.Sprintf("%d of %d pods are ready.", a.Ready, a.Wanted)
	}
	if a != nil && a.Restarts > 0 {
		f.Detail += fmt.Sprintf(" %d restarts, the last one after %s.", a.Restarts, dash(a.LastTermination))
	}
	return f
}

// rights asks the API server whether the caller may do what the command line needs.
func (s *session) rights(ctx context.Context, objects []*object) []finding {
	type right struct{ namespace, verb, group, resource, subresource, name, cure string }
	wanted := []right{
		{s.adapter.namespace(ctx), "create", "", "pods", "portforward", pods[0], "apply config/cli and bind its Role"},
		{s.adapter.namespace(ctx), "get", "", "pods", "portforward", pods[0], "apply config/cli and bind its Role"},
	}
	seen := map[string]bool{}
	for _, o := range objects {
		in, account := s.account(o.Namespace)
		if !seen[in] {
			seen[in] = true
			wanted = append(wanted, right{in, "create", "", "serviceaccounts", "token", account, s.tokenCure(ctx, in)})
		}
	}
	reviews := schema.GroupVersionResource{Group: "authorization.k8s.io", Version: "v1", Resource: "selfsubjectaccessreviews"}
	var found []finding
	for _, r := range wanted {
		review := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
			"spec": map[string]any{"resourceAttributes": map[string]any{
				"namespace": r.namespace, "verb": r.verb, "group": r.group, "resource": r.resource, "subresource": r.subresource, "name": r.name,
			}},
		}}
		f := finding{Subject: "right to " + r.verb + " " + r.resource + "/" + r.subresource + " in " + r.namespace, OK: true, Detail: "You have it."}
		answer, err := s.api.Resource(reviews).Create(ctx, review, metav1.CreateOptions{})
		if err != nil {
			f.Unknown, f.Detail = true, "It could not be asked: "+words(err)
		} else if allowed, _, _ := unstructured.NestedBool(answer.Object, "status", "allowed"); !allowed {
			f.OK, f.Detail = false, fmt.Sprintf("You do not have it: %s. Check: kubectl auth can-i %s %s/%s --subresource=%s -n %s", r.cure, r.verb, r.resource, r.name, r.subresource, r.namespace)
		}
		found = append(found, f)
	}
	return found
}
