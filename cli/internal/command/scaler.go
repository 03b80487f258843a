package command

import (
	"context"
	"errors"
	"fmt"
	"io"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

// grantedFor is the label of what create has made for a source: only that is replaced.
const grantedFor = "sources.reschedule.dev/granted-for"

// scalerOf are the Role and the RoleBinding that let the account scale one workload, and look at its pods.
func scalerOf(source *unstructured.Unstructured, workload schema.GroupResource, name, account string) ([]*unstructured.Unstructured, error) {
	meta := metav1.ObjectMeta{Name: source.GetName() + "-scaler", Namespace: source.GetNamespace(), Labels: map[string]string{grantedFor: source.GetName()}}
	role := &rbacv1.Role{
		TypeMeta: metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "Role"}, ObjectMeta: meta,
		Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{workload.Group}, Resources: []string{workload.Resource + "/scale"}, ResourceNames: []string{name}, Verbs: []string{"get", "patch"}},
			{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list"}},
		},
	}
	binding := &rbacv1.RoleBinding{
		TypeMeta: metav1.TypeMeta{APIVersion: role.APIVersion, Kind: "RoleBinding"}, ObjectMeta: meta,
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: meta.Name},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: account, Namespace: source.GetNamespace()}},
	}
	var all []*unstructured.Unstructured
	for _, o := range []any{role, binding} {
		made, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
		if err != nil {
			return nil, err
		}
		unstructured.RemoveNestedField(made, "metadata", "creationTimestamp")
		all = append(all, &unstructured.Unstructured{Object: made})
	}
	return all, nil
}

// grant creates the Role and the RoleBinding, or replaces them: a source of this name may have been deleted.
// Without the right to do so it prints them, and its error says who has to apply them.
func (s inspector) grant(ctx context.Context, out io.Writer, all []*unstructured.Unstructured) error {
	for _, o := range all {
		resource := rbacv1.SchemeGroupVersion.WithResource("roles")
		if o.GetKind() == "RoleBinding" {
			resource = rbacv1.SchemeGroupVersion.WithResource("rolebindings")
		}
		r := s.api.Resource(resource).Namespace(o.GetNamespace())
		_, err := r.Create(ctx, o, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			err = replaceGrant(ctx, r, o)
		}
		switch {
		case apierrors.IsForbidden(err):
			return errors.Join(printDocuments(out, all), denied("the source is created, but not its rights: %s. An administrator of namespace %s has to apply "+
				"the Role and the RoleBinding that are printed: without them the workload cannot be scaled, nor its pods be looked at", words(err), o.GetNamespace()))
		case err != nil:
			return fmt.Errorf("the source is created, but not %s %s: %w", o.GetKind(), o.GetName(), err)
		}
	}
	return nil
}

// replaceGrant replaces an object that was made for a source of this name.
func replaceGrant(ctx context.Context, r dynamic.ResourceInterface, o *unstructured.Unstructured) error {
	before, err := r.Get(ctx, o.GetName(), metav1.GetOptions{})
	if err != nil {
		return err
	}
	if before.GetLabels()[grantedFor] != o.GetLabels()[grantedFor] {
		return errors.New("it exists and was not made for this source: delete it, or give the source another name")
	}
	_, err = r.Update(ctx, o, metav1.UpdateOptions{})
	return err
}

// printDocuments prints objects as documents of YAML.
func printDocuments(w io.Writer, all []*unstructured.Unstructured) error {
	for i, o := range all {
		if i > 0 {
			fmt.Fprintln(w, "---")
		}
		if err := (&output{format: "yaml"}).printOne(w, o); err != nil {
			return err
		}
	}
	return nil
}
