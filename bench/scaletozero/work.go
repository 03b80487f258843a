package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// operators has the number of operators of each form.
type operators map[string]int

// forms is their order.
var forms = []string{resident, serverless, warmed, defaults, fed, shared}

// atZeroForms are the forms that have no pod while idle.
var atZeroForms = forms[1:]

func namespace(form string, i int) string { return fmt.Sprintf("%s%s-%d", namespacePrefix, form, i) }

//go:embed shared.yaml
var sharedManifest string

// deploy creates all operators, each in a namespace of its own, and waits until they are ready.
func deploy(ctx context.Context, repo string, n operators) error {
	for _, form := range forms {
		file := "serverless.yaml"
		switch form {
		case resident:
			file = "resident.yaml"
		case fed, shared:
			file = "apiserversource.yaml"
		}
		if n[form] == 0 {
			continue
		}
		manifest, err := run(ctx, repo, "", "go", "tool", "-modfile=tools/ko/go.mod", "ko", "resolve", "-f", "test/expiry/config/"+file)
		if err != nil {
			return err
		}
		for i := range n[form] {
			ns := namespace(form, i)
			log.Printf("%s: waiting until it is ready", ns)
			if _, err := kubectl(ctx, manifestOf(form, manifest, ns), "apply", "-f", "-"); err != nil {
				return err
			}
			kinds := []string{"deployment --for=condition=Available"}
			if form != resident {
				kinds = []string{"service.serving.knative.dev --for=condition=Ready", "reschedulesource --for=condition=Ready"}
			}
			if form == fed || form == shared {
				kinds = append(kinds, "apiserversource --for=condition=Ready")
			}
			for _, kind := range kinds {
				args := append([]string{"-n", ns, "wait", "--all", "--timeout=5m"}, strings.Fields(kind)...)
				if _, err := kubectl(ctx, "", args...); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

var (
	exampleNamespace = regexp.MustCompile(`(?m)namespace: expiry$`)
	window           = regexp.MustCompile(`(?m)^ +autoscaling\.knative\.dev/window:.*\n`)
	timeout          = regexp.MustCompile(`(?m)^ +timeoutSeconds:.*\n`)
)

// warmUp is longer than a cold start, and not by much: the pod waits meanwhile.
const warmUp = "4s"

// manifestOf returns the manifest of one operator, made of the example's.
func manifestOf(form, manifest, ns string) string {
	documents := strings.Split(manifest, "\n---\n")
	var kept []string
	for _, d := range documents {
		if form == shared && strings.Contains(d, "kind: ApiServerSource") {
			continue
		}
		d = exampleNamespace.ReplaceAllString(d, "namespace: "+ns)
		if strings.Contains(d, "kind: Namespace") {
			d = strings.ReplaceAll(d, "name: expiry", "name: "+ns)
		}
		if form == warmed && strings.Contains(d, "kind: RescheduleSource") {
			d = strings.Replace(d, "\nspec:\n", "\nspec:\n  warmUp: "+warmUp+"\n", 1)
		}
		if form == defaults {
			d = timeout.ReplaceAllString(window.ReplaceAllString(d, ""), "")
		}
		kept = append(kept, d)
	}
	if form == shared {
		kept = append(kept, exampleNamespace.ReplaceAllString(sharedManifest, "namespace: "+ns))
	}
	return strings.Join(kept, "\n---\n") + "\n"
}

// undeploy removes all of them.
func undeploy(ctx context.Context, n operators) error {
	args := []string{"delete", "namespace", "--ignore-not-found", "--wait=false"}
	for _, form := range forms {
		for i := range n[form] {
			args = append(args, namespace(form, i))
		}
	}
	_, err := kubectl(ctx, "", args...)
	return err
}

// atZero waits until only resident operators have a pod.
func (c *cluster) atZero(ctx context.Context) error {
	const limit = 5 * time.Minute
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		pods, err := c.pods(ctx)
		if err != nil {
			return err
		}
		var up []string
		for _, pod := range pods {
			if slices.Contains(atZeroForms, podPart(pod)) {
				up = append(up, pod.Namespace+"/"+pod.Name)
			}
		}
		if len(up) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("scaletozero: after %s these pods still exist: %s", limit, strings.Join(up, ", "))
		case <-time.After(time.Second):
		}
	}
}

// job is one ConfigMap: it wakes the operator when it is created and when it expires.
type job struct {
	ns    string
	after time.Duration // from the beginning
	lives time.Duration
}

// work creates the ConfigMaps at their times, and returns when the time is over.
func (c *cluster) work(ctx context.Context, jobs []job, long time.Duration) error {
	began := time.Now()
	errs := make(chan error, len(jobs))
	var all sync.WaitGroup
	for i, j := range jobs {
		all.Go(func() {
			if wait(ctx, time.Until(began.Add(j.after))) != nil {
				return
			}
			errs <- c.create(ctx, j.ns, fmt.Sprintf("job-%d", i), j.lives)
		})
	}
	err := wait(ctx, long)
	all.Wait()
	close(errs)
	for e := range errs {
		if e != nil {
			return e
		}
	}
	return err
}

func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

func (c *cluster) create(ctx context.Context, ns, name string, lives time.Duration) error {
	body, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap",
		"metadata": map[string]any{"generateName": name + "-", "labels": map[string]string{"expires-after": lives.String()}},
	})
	if err != nil {
		return fmt.Errorf("scaletozero: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base+"/api/v1/namespaces/"+ns+"/configmaps", strings.NewReader(string(body)))
	if err != nil {
		return fmt.Errorf("scaletozero: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("scaletozero: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusCreated {
		return fmt.Errorf("scaletozero: creating a ConfigMap in %s: %s", ns, resp.Status)
	}
	return nil
}

// lateness watches deletions of ConfigMaps until ctx ends. For each form it
// returns by how many seconds they were late.
func (c *cluster) lateness(ctx context.Context) map[string][]float64 {
	late := map[string][]float64{}
	for ctx.Err() == nil {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+"/api/v1/configmaps?watch=1&labelSelector=expires-after", nil)
		if err != nil {
			return late
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			_ = wait(ctx, time.Second)
			continue
		}
		for decoder := json.NewDecoder(resp.Body); ; {
			var event struct {
				Type   string
				Object struct{ Metadata metadata }
			}
			if err := decoder.Decode(&event); err != nil {
				break
			}
			m := event.Object.Metadata
			form, found := strings.CutPrefix(m.Namespace, namespacePrefix)
			lives, err := time.ParseDuration(m.Labels["expires-after"])
			if event.Type != "DELETED" || !found || err != nil {
				continue
			}
			form, _, _ = strings.Cut(form, "-")
			late[form] = append(late[form], time.Since(m.CreationTimestamp.Add(lives)).Seconds())
		}
		resp.Body.Close()
	}
	return late
}
