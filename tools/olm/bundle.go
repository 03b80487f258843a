package main

import (
	"bufio"
	"bytes"
	_ "embed"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/blang/semver/v4"
	apiversion "github.com/operator-framework/api/pkg/lib/version"
	"github.com/operator-framework/api/pkg/manifests"
	"github.com/operator-framework/api/pkg/operators/v1alpha1"
	"github.com/operator-framework/api/pkg/validation"
	validator "github.com/operator-framework/api/pkg/validation/interfaces"
	appsv1 "k8s.io/api/apps/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// packageName is the name of the package in a catalog.
const packageName = "reschedule"

var (
	//go:embed csv.yaml
	base []byte
	//go:embed icon.svg
	icon []byte
)

// plain are the kinds that a bundle holds as they are. OLM takes more kinds
// (operator-registry, pkg/lib/bundle/supported_resources.go), but no StatefulSet and no
// admission policy.
var plain = []string{"CustomResourceDefinition", "ClusterRole", "ClusterRoleBinding", "Service", "PodDisruptionBudget", "NetworkPolicy"}

// validators are operator-framework's. Left out are validators of other formats, and the
// one that pulls images with a container engine.
var validators = validator.Validators{
	validation.ClusterServiceVersionValidator, validation.CustomResourceDefinitionValidator, validation.BundleValidator,
	validation.OperatorHubV2Validator, validation.StandardCapabilitiesValidator, validation.StandardCategoriesValidator,
	validation.ObjectValidator, validation.AlphaDeprecatedAPIsValidator, validation.GoodPracticesValidator,
}

// channel is where a version is published.
func channel(version semver.Version) string {
	if len(version.Pre) > 0 {
		return "candidate"
	}
	return "stable"
}

// writeBundle writes the bundle of a version, and validates what it wrote.
func writeBundle(version string, objects []byte, dir string) error {
	number, err := semver.Parse(strings.TrimPrefix(version, "v"))
	if err != nil {
		return fmt.Errorf("the version %q: %w", version, err)
	}
	all, err := decode(objects)
	if err != nil {
		return err
	}
	csv, rest, err := translate(number, all)
	if err != nil {
		return err
	}
	files := map[string]any{"metadata/annotations.yaml": map[string]any{"annotations": labels(number)}}
	if files["manifests/"+packageName+".clusterserviceversion.yaml"], err = withoutStatus(csv); err != nil {
		return err
	}
	for _, o := range rest {
		files["manifests/"+o.GetName()+"."+strings.ToLower(o.GetKind())+".yaml"] = o.Object
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		text, err := yaml.Marshal(files[name])
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(file, text, 0o644); err != nil {
			return err
		}
	}
	return validate(dir)
}

// labels are the annotations of the bundle, which are labels of its image too.
func labels(version semver.Version) map[string]string {
	const prefix = "operators.operatorframework.io.bundle."
	return map[string]string{
		prefix + "mediatype.v1":       "registry+v1",
		prefix + "manifests.v1":       "manifests/",
		prefix + "metadata.v1":        "metadata/",
		prefix + "package.v1":         packageName,
		prefix + "channels.v1":        channel(version),
		prefix + "channel.default.v1": channel(version),
	}
}

func decode(text []byte) (all []*unstructured.Unstructured, err error) {
	for docs := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text))); ; {
		doc, err := docs.Read()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		o := &unstructured.Unstructured{}
		if err == nil {
			err = yaml.UnmarshalStrict(doc, &o.Object)
		}
		if err != nil {
			return nil, fmt.Errorf("the objects: %w", err)
		}
		if len(o.Object) > 0 { // else comments only
			all = append(all, o)
		}
	}
}

// translate makes the install strategy of the Deployment, the ServiceAccounts and the
// roles that are bound to them. The other objects stay objects.
func translate(version semver.Version, all []*unstructured.Unstructured) (*v1alpha1.ClusterServiceVersion, []*unstructured.Unstructured, error) {
	csv := &v1alpha1.ClusterServiceVersion{}
	if err := yaml.UnmarshalStrict(base, csv); err != nil {
		return nil, nil, fmt.Errorf("csv.yaml: %w", err)
	}
	csv.Name = packageName + ".v" + version.String()
	csv.Spec.Version = apiversion.OperatorVersion{Version: version}
	csv.Spec.Icon = []v1alpha1.Icon{{Data: base64.StdEncoding.EncodeToString(icon), MediaType: "image/svg+xml"}}
	// Each version upgrades every older one.
	csv.Annotations["olm.skipRange"] = "<" + version.String()
	csv.Annotations["artifacthub.io/prerelease"] = strconv.FormatBool(len(version.Pre) > 0)
	csv.Spec.InstallStrategy.StrategyName = v1alpha1.InstallStrategyNameDeployment
	strategy := &csv.Spec.InstallStrategy.StrategySpec

	rules := map[string][]rbacv1.PolicyRule{} // by kind and name of the role
	for _, o := range all {
		if o.GetKind() == "Role" || o.GetKind() == "ClusterRole" {
			var role rbacv1.ClusterRole
			if err := into(o, &role); err != nil {
				return nil, nil, err
			}
			rules[o.GetKind()+"/"+o.GetName()] = role.Rules
		}
	}
	bound, accounts := map[string]bool{}, map[string]bool{}
	for _, o := range all {
		switch o.GetKind() {
		case "ServiceAccount":
			accounts[o.GetName()] = true
		case "Deployment":
			var d appsv1.Deployment
			if err := into(o, &d); err != nil {
				return nil, nil, err
			}
			strategy.DeploymentSpecs = append(strategy.DeploymentSpecs, v1alpha1.StrategyDeploymentSpec{Name: d.Name, Spec: d.Spec, Label: d.Labels})
		case "RoleBinding", "ClusterRoleBinding":
			var b rbacv1.ClusterRoleBinding
			if err := into(o, &b); err != nil {
				return nil, nil, err
			}
			role := b.RoleRef.Kind + "/" + b.RoleRef.Name
			if rules[role] == nil || len(b.Subjects) != 1 {
				continue // a role of others: the binding stays an object
			}
			bound[role], bound[o.GetKind()+"/"+b.Name] = true, true
			permissions := &strategy.Permissions
			if o.GetKind() == "ClusterRoleBinding" {
				permissions = &strategy.ClusterPermissions
			}
			*permissions = granted(*permissions, b.Subjects[0].Name, rules[role])
		}
	}
	var rest []*unstructured.Unstructured
	for _, o := range all {
		switch kind := o.GetKind(); {
		case bound[kind+"/"+o.GetName()] || kind == "ServiceAccount" || kind == "Deployment":
		case !slices.Contains(plain, kind):
			return nil, nil, fmt.Errorf("a bundle cannot hold %s %s: leave it out in config/olm", kind, o.GetName())
		default:
			o.SetNamespace("") // OLM puts it into the namespace of the installation
			rest = append(rest, o)
		}
	}
	// OLM makes the accounts that have permissions.
	for _, p := range slices.Concat(strategy.Permissions, strategy.ClusterPermissions) {
		delete(accounts, p.ServiceAccountName)
	}
	if len(accounts) > 0 {
		return nil, nil, fmt.Errorf("no role is bound to the ServiceAccounts %v, so OLM would not make them", slices.Sorted(maps.Keys(accounts)))
	}
	return csv, rest, images(csv)
}

func into(o *unstructured.Unstructured, typed any) error {
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, typed); err != nil {
		return fmt.Errorf("%s %s: %w", o.GetKind(), o.GetName(), err)
	}
	return nil
}

// granted adds rules to the permissions of an account.
func granted(all []v1alpha1.StrategyDeploymentPermissions, account string, rules []rbacv1.PolicyRule) []v1alpha1.StrategyDeploymentPermissions {
	for i := range all {
		if all[i].ServiceAccountName == account {
			all[i].Rules = append(all[i].Rules, rules...)
			return all
		}
	}
	return append(all, v1alpha1.StrategyDeploymentPermissions{ServiceAccountName: account, Rules: slices.Clone(rules)})
}

// images lists the images of the containers and of the variables RELATED_IMAGE_…, which
// is how OLM and mirrors find them.
func images(csv *v1alpha1.ClusterServiceVersion) error {
	add := func(name, image string) error {
		if !strings.Contains(image, "@sha256:") {
			return fmt.Errorf("the image %s of %s has no digest", image, name)
		}
		csv.Spec.RelatedImages = append(csv.Spec.RelatedImages, v1alpha1.RelatedImage{Name: name, Image: image})
		return nil
	}
	for _, d := range csv.Spec.InstallStrategy.StrategySpec.DeploymentSpecs {
		for _, c := range d.Spec.Template.Spec.Containers {
			csv.Annotations["containerImage"] = c.Image
			if err := add(c.Name, c.Image); err != nil {
				return err
			}
			for _, e := range c.Env {
				if name, ok := strings.CutPrefix(e.Name, "RELATED_IMAGE_"); ok {
					if err := add(strings.ToLower(name), e.Value); err != nil {
						return err
					}
				}
			}
		}
	}
	return nil
}

// withoutStatus is the object without what only OLM writes.
func withoutStatus(csv *v1alpha1.ClusterServiceVersion) (map[string]any, error) {
	o, err := runtime.DefaultUnstructuredConverter.ToUnstructured(csv)
	if err != nil {
		return nil, fmt.Errorf("the ClusterServiceVersion: %w", err)
	}
	delete(o, "status")
	unstructured.RemoveNestedField(o, "metadata", "creationTimestamp")
	return o, nil
}

// validate refuses a bundle that a validator has an error or a warning about.
func validate(dir string) error {
	bundle, err := manifests.GetBundleFromDir(dir)
	if err != nil {
		return fmt.Errorf("the bundle cannot be read: %w", err)
	}
	var found []error
	objects := append(bundle.ObjectsToValidate(), map[string]string{"k8s-version": bundle.CSV.Spec.MinKubeVersion})
	for _, result := range validators.Validate(objects...) {
		for _, complaint := range slices.Concat(result.Errors, result.Warnings) {
			found = append(found, complaint)
		}
	}
	return errors.Join(found...)
}
