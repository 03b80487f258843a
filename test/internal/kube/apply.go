package kube

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"
)

// ApplyDir applies every manifest of a directory in the order of the files'
// names, as kubectl does, without its subdirectories.
func (c *Cluster) ApplyDir(ctx context.Context, dir string) error {
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil || len(files) == 0 {
		return fmt.Errorf("kube: %s has no manifests: %w", dir, err)
	}
	slices.Sort(files)
	return c.ApplyFiles(ctx, files...)
}

// ApplyFiles applies the manifests of files.
func (c *Cluster) ApplyFiles(ctx context.Context, files ...string) error {
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("kube: %w", err)
		}
		if err := c.Apply(ctx, text); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
	}
	return nil
}

// Apply applies manifests, on the server's side and with strict validation,
// and waits until each CustomResourceDefinition among them is served.
func (c *Cluster) Apply(ctx context.Context, manifests []byte) error {
	return c.ApplyIn(ctx, "", manifests)
}

// ApplyIn is Apply, with a namespace for the objects that want one and name none.
func (c *Cluster) ApplyIn(ctx context.Context, namespace string, manifests []byte) error {
	objects, err := Objects(manifests)
	if err != nil {
		return err
	}
	for _, o := range objects {
		if o.GetNamespace() == "" {
			o.SetNamespace(namespace)
		}
		resource, err := c.Resource(o.GroupVersionKind(), o.GetNamespace())
		if err != nil {
			return err
		}
		data, err := o.MarshalJSON()
		if err != nil {
			return fmt.Errorf("kube: applying: %w", err)
		}
		force := true
		_, err = resource.Patch(ctx, o.GetName(), "application/apply-patch+yaml", data, metav1.PatchOptions{
			FieldManager: "kube-test", Force: &force, FieldValidation: metav1.FieldValidationStrict,
		})
		if err != nil {
			return fmt.Errorf("kube: applying %s %s: %w", o.GetKind(), o.GetName(), err)
		}
		if o.GetKind() == "CustomResourceDefinition" {
			if err := c.served(ctx, resource, o); err != nil {
				return err
			}
		}
	}
	return nil
}

// served waits until the objects of a definition can be made: until it is
// established, and until discovery tells of it, which is a moment later.
func (c *Cluster) served(ctx context.Context, definitions dynamic.ResourceInterface, definition *unstructured.Unstructured) error {
	group, _, _ := unstructured.NestedString(definition.Object, "spec", "group")
	kind, _, _ := unstructured.NestedString(definition.Object, "spec", "names", "kind")
	return until(ctx, nil, func(ctx context.Context) error {
		o, err := definitions.Get(ctx, definition.GetName(), metav1.GetOptions{})
		if err != nil {
			return err
		}
		conditions, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
		if !slices.ContainsFunc(conditions, func(c any) bool {
			condition, ok := c.(map[string]any)
			return ok && condition["type"] == "Established" && condition["status"] == "True"
		}) {
			return fmt.Errorf("%s is not established: %v", o.GetName(), conditions)
		}
		c.Mapper.Reset()
		_, err = c.Mapper.RESTMapping(schema.GroupKind{Group: group, Kind: kind})
		return err
	})
}

// Objects reads manifests.
func Objects(manifests []byte) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	for docs := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(manifests))); ; {
		doc, err := docs.Read()
		if errors.Is(err, io.EOF) {
			return objects, nil
		} else if err != nil {
			return nil, fmt.Errorf("kube: a manifest: %w", err)
		}
		o := &unstructured.Unstructured{}
		if err := yaml.UnmarshalStrict(doc, &o.Object); err != nil {
			return nil, fmt.Errorf("kube: a manifest: %w", err)
		}
		if len(o.Object) > 0 { // else comments only
			objects = append(objects, o)
		}
	}
}
