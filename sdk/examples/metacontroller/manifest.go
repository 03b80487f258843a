package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

const group = "metacontroller.k8s.io/"

// manifest is a CompositeController or a DecoratorController of a file. Both have the
// same parts under other names: objects that are synced, children, and hooks.
type manifest struct {
	Kind     string `json:"kind"`
	Metadata struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Spec struct {
		ParentResource      *parentRule  `json:"parentResource"`
		ChildResources      []childRule  `json:"childResources"`
		GenerateSelector    bool         `json:"generateSelector"`
		Resources           []parentRule `json:"resources"`
		Attachments         []childRule  `json:"attachments"`
		ResyncPeriodSeconds int32        `json:"resyncPeriodSeconds"`
		Hooks               struct {
			Sync      *hook `json:"sync"`
			Finalize  *hook `json:"finalize"`
			Customize *hook `json:"customize"`
		} `json:"hooks"`
	} `json:"spec"`

	raw json.RawMessage // the whole object, which hooks get
}

type resourceRule struct {
	APIVersion string `json:"apiVersion"`
	Resource   string `json:"resource"`
}

type parentRule struct {
	resourceRule
	LabelSelector      *metav1.LabelSelector `json:"labelSelector"`
	AnnotationSelector *struct {
		MatchAnnotations map[string]string                 `json:"matchAnnotations"`
		MatchExpressions []metav1.LabelSelectorRequirement `json:"matchExpressions"`
	} `json:"annotationSelector"`
	IgnoreStatusChanges bool            `json:"ignoreStatusChanges"`
	RevisionHistory     json.RawMessage `json:"revisionHistory"` // of rolling updates, which are refused

	labels, annotations labels.Selector
}

type childRule struct {
	resourceRule
	UpdateStrategy struct {
		Method       string          `json:"method"`
		StatusChecks json.RawMessage `json:"statusChecks"` // of rolling updates, which are refused
	} `json:"updateStrategy"`
}

type hook struct {
	Version string   `json:"version"`
	Webhook *webhook `json:"webhook"`

	name    string // sync, finalize or customize
	url     string
	timeout time.Duration
	strict  bool
}

type webhook struct {
	URL     string           `json:"url"`
	Timeout *metav1.Duration `json:"timeout"`
	Path    string           `json:"path"`
	Service *struct {
		Name      string `json:"name"`
		Namespace string `json:"namespace"`
		Port      int32  `json:"port"`
		Protocol  string `json:"protocol"`
	} `json:"service"`
	Etag *struct {
		Enabled             bool  `json:"enabled"`
		CacheTimeoutSeconds int32 `json:"cacheTimeoutSeconds"`
		CacheCleanupSeconds int32 `json:"cacheCleanupSeconds"`
	} `json:"etag"`
	ResponseUnmarshallMode string `json:"responseUnMarshallMode"`
}

// readManifests reads the controllers of files. Other objects, such as the Deployment of
// the hooks, may stand beside them.
func readManifests(files []string) (all []*manifest, err error) {
	names := map[string]string{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		of, err := parseManifests(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		for _, m := range of {
			id := m.Kind + " " + m.Metadata.Name
			if other, taken := names[id]; taken {
				return nil, fmt.Errorf("%s: %s is in %s too", file, id, other)
			}
			names[id] = file
		}
		all = append(all, of...)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("no CompositeController or DecoratorController of %sv1alpha1 in %q", group, files)
	}
	return all, nil
}

func parseManifests(text []byte) (all []*manifest, err error) {
	for documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text))); ; {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, err
		}
		var is metav1.TypeMeta
		if err := yaml.Unmarshal(document, &is); err != nil {
			return nil, err
		}
		if !strings.HasPrefix(is.APIVersion, group) {
			continue
		}
		m, err := parseManifest(document)
		if err != nil {
			return nil, err
		}
		all = append(all, m)
	}
}

func parseManifest(document []byte) (*manifest, error) {
	m := &manifest{}
	raw, err := yaml.YAMLToJSONStrict(document)
	if err != nil {
		return nil, err
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(raw, m); err != nil {
		return nil, err
	}
	about := m.Kind + " " + m.Metadata.Name
	// Metadata is for others, so only the spec must not have fields that are not known.
	var spec struct {
		Spec json.RawMessage `json:"spec"`
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(raw, &spec); err != nil {
		return nil, fmt.Errorf("%s: %w", about, err)
	}
	unknown, err := kjson.UnmarshalStrict(spec.Spec, &m.Spec)
	if err := errors.Join(err, errors.Join(unknown...)); err != nil {
		return nil, fmt.Errorf("%s: spec: this bridge cannot read it: %w", about, err)
	}
	m.raw = raw
	if err := m.complete(); err != nil {
		return nil, fmt.Errorf("%s: %w", about, err)
	}
	return m, nil
}

func (m *manifest) composite() bool { return m.Kind == "CompositeController" }

// parents and children are in the words of a CompositeController.
func (m *manifest) parents() []parentRule {
	if m.composite() {
		return []parentRule{*m.Spec.ParentResource}
	}
	return m.Spec.Resources
}

func (m *manifest) children() []childRule {
	if m.composite() {
		return m.Spec.ChildResources
	}
	return m.Spec.Attachments
}

// finalizer is Metacontroller's own, so that an object may change between the two.
func (m *manifest) finalizer() string {
	return "metacontroller.io/" + strings.ToLower(m.Kind) + "-" + m.Metadata.Name
}

// complete checks a manifest, and refuses what this bridge does not do.
func (m *manifest) complete() error {
	s := &m.Spec
	switch {
	case m.Metadata.Name == "":
		return errors.New("metadata.name is missing")
	case m.composite():
		if s.ParentResource == nil || len(s.Resources)+len(s.Attachments) > 0 {
			return errors.New("spec must have parentResource and childResources")
		}
	case m.Kind == "DecoratorController":
		if len(s.Resources) == 0 || s.ParentResource != nil || len(s.ChildResources) > 0 || s.GenerateSelector {
			return errors.New("spec must have resources and attachments")
		}
	default:
		return errors.New("kind must be CompositeController or DecoratorController")
	}
	if s.ResyncPeriodSeconds < 0 {
		return errors.New("spec.resyncPeriodSeconds must not be negative")
	}
	if s.ParentResource != nil {
		if err := s.ParentResource.complete("spec.parentResource"); err != nil {
			return err
		}
	}
	for i := range s.Resources {
		if err := s.Resources[i].complete(fmt.Sprintf("spec.resources[%d]", i)); err != nil {
			return err
		}
	}
	for i, c := range m.children() {
		at := fmt.Sprintf("the child rule %d (%s)", i, c.Resource)
		if err := c.check(at); err != nil {
			return err
		}
		switch method := c.UpdateStrategy.Method; method {
		case "", "OnDelete", "Recreate", "InPlace":
		case "RollingRecreate", "RollingInPlace":
			return fmt.Errorf("%s: updateStrategy.method %s is not supported: use Recreate or InPlace, or return a Deployment or StatefulSet", at, method)
		default:
			return fmt.Errorf("%s: updateStrategy.method %q must be OnDelete, Recreate or InPlace", at, method)
		}
	}
	if s.Hooks.Sync == nil {
		return errors.New("spec.hooks.sync is missing")
	}
	for name, h := range map[string]*hook{"sync": s.Hooks.Sync, "finalize": s.Hooks.Finalize, "customize": s.Hooks.Customize} {
		if h == nil {
			continue
		}
		h.name = name
		if err := h.complete(); err != nil {
			return fmt.Errorf("spec.hooks.%s: %w", name, err)
		}
	}
	return nil
}

func (r resourceRule) check(at string) error {
	if r.APIVersion == "" || r.Resource == "" {
		return fmt.Errorf("%s must have apiVersion and resource", at)
	}
	return nil
}

func (r *parentRule) complete(at string) (err error) {
	if err := r.check(at); err != nil {
		return err
	}
	r.labels, r.annotations = labels.Everything(), labels.Everything()
	if r.LabelSelector != nil {
		if r.labels, err = metav1.LabelSelectorAsSelector(r.LabelSelector); err != nil {
			return fmt.Errorf("%s.labelSelector: %w", at, err)
		}
	}
	if a := r.AnnotationSelector; a != nil {
		same := &metav1.LabelSelector{MatchLabels: a.MatchAnnotations, MatchExpressions: a.MatchExpressions}
		if r.annotations, err = metav1.LabelSelectorAsSelector(same); err != nil {
			return fmt.Errorf("%s.annotationSelector: %w", at, err)
		}
	}
	return nil
}

func (r *parentRule) selects(o metav1.Object) bool {
	return r.labels.Matches(labels.Set(o.GetLabels())) && r.annotations.Matches(labels.Set(o.GetAnnotations()))
}

func (h *hook) v2() bool { return h.Version == "v2" }

func (h *hook) complete() error {
	if h.Version != "" && h.Version != "v1" && h.Version != "v2" {
		return fmt.Errorf("version %q must be v1 or v2", h.Version)
	}
	w := h.Webhook
	if w == nil {
		return errors.New("webhook is missing")
	}
	if w.Etag != nil && w.Etag.Enabled {
		return errors.New("webhook.etag is not supported: a cache would end with the pod")
	}
	switch w.ResponseUnmarshallMode {
	case "":
		h.strict = h.v2()
	case "strict", "loose":
		h.strict = w.ResponseUnmarshallMode == "strict"
	default:
		return fmt.Errorf("webhook.responseUnMarshallMode %q must be loose or strict", w.ResponseUnmarshallMode)
	}
	h.timeout = 10 * time.Second
	if w.Timeout != nil {
		if h.timeout = w.Timeout.Duration; h.timeout <= 0 {
			return errors.New("webhook.timeout must be above zero")
		}
	}
	h.url = w.URL
	if s := w.Service; h.url == "" && s != nil && s.Name != "" && s.Namespace != "" && w.Path != "" {
		protocol, port := s.Protocol, s.Port
		if protocol == "" {
			protocol = "http"
		}
		if port == 0 {
			port = 80
		}
		h.url = fmt.Sprintf("%s://%s.%s:%d%s", protocol, s.Name, s.Namespace, port, w.Path)
	}
	if u, err := url.Parse(h.url); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return errors.New("webhook must have a url, or path and service with name and namespace")
	}
	return nil
}
