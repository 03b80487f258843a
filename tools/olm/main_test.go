package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const image = "registry.test/controller@sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"

// objects are the least that a bundle can be made of.
func objects(t *testing.T) string {
	t.Helper()
	crd, err := os.ReadFile("../../config/300-reschedulesource.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return string(crd) + `
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: c, namespace: knative-eventing}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: c, namespace: knative-eventing}
rules: [{apiGroups: [""], resources: [configmaps], verbs: [get]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: c, namespace: knative-eventing}
subjects: [{kind: ServiceAccount, name: c, namespace: knative-eventing}]
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: c}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: c, namespace: knative-eventing}
spec:
  selector: {matchLabels: {app: c}}
  template:
    metadata: {labels: {app: c}}
    spec:
      serviceAccountName: c
      containers:
      - name: c
        image: ` + image + `
        resources: {requests: {cpu: 20m, memory: 64Mi}}
`
}

// The same input gives the same bytes, and channels tell pre-releases from releases.
func TestBundle_SameBytes(t *testing.T) {
	t.Parallel()
	var before []byte
	for range 2 {
		dir, file := t.TempDir(), filepath.Join(t.TempDir(), "catalog.yaml")
		if err := writeBundle("v1.2.3-rc.1", []byte(objects(t)), dir); err != nil {
			t.Fatal(err)
		}
		if err := writeCatalog(dir, image, file); err != nil {
			t.Fatal(err)
		}
		var all []byte
		for _, name := range []string{filepath.Join(dir, "manifests", "reschedule.clusterserviceversion.yaml"), filepath.Join(dir, "metadata", "annotations.yaml"), file} {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, text...)
		}
		if before != nil && !bytes.Equal(before, all) {
			t.Error("two runs differ")
		}
		before = all
	}
	for _, words := range []string{"name: reschedule.v1.2.3-rc.1", "channels.v1: candidate", "skipRange: <1.2.3-rc.1", "schema: olm.channel"} {
		if !strings.Contains(string(before), words) {
			t.Errorf("it does not have %q", words)
		}
	}
}

// An object that a bundle cannot hold, or that would get lost, is refused by name.
func TestBundle_Refusals(t *testing.T) {
	t.Parallel()
	all := objects(t)
	for want, text := range map[string]string{
		"cannot hold StatefulSet x":                                   all + "---\napiVersion: apps/v1\nkind: StatefulSet\nmetadata: {name: x}\n",
		"cannot hold ValidatingAdmissionPolicy x":                     all + "---\napiVersion: admissionregistration.k8s.io/v1\nkind: ValidatingAdmissionPolicy\nmetadata: {name: x}\n",
		"no role is bound to the ServiceAccounts [x]":                 all + "---\napiVersion: v1\nkind: ServiceAccount\nmetadata: {name: x}\n",
		"has no digest":                                               strings.ReplaceAll(all, "@sha256:", ":"),
		"unable to find the resource requests for the container: (c)": strings.ReplaceAll(all, "resources: {requests: {cpu: 20m, memory: 64Mi}}", ""), // a warning
		"not found in bundle":                                         all[strings.Index(all, "\n---\napiVersion: v1\nkind: ServiceAccount"):],        // an error
	} {
		if err := writeBundle("v1.2.3", []byte(text), t.TempDir()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if err := writeBundle("latest", []byte(all), t.TempDir()); err == nil {
		t.Error(`the version "latest" is taken`)
	}
	if err := run([]string{"push"}); err == nil {
		t.Error("an unknown command is taken")
	}
}

// A catalog names the bundle by digest.
func TestCatalog_NeedsADigest(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := writeBundle("v1.2.3", []byte(objects(t)), dir); err != nil {
		t.Fatal(err)
	}
	if err := writeCatalog(dir, "registry.test/bundle:v1", filepath.Join(dir, "c.yaml")); err == nil {
		t.Error("a tag is taken")
	}
}
