package main

import (
	"context"
	"errors"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	metadatafake "k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"
)

func configMap(age time.Duration, labels map[string]string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Namespace: "team-a", Name: "cache", UID: "1", ResourceVersion: "7", CreationTimestamp: metav1.NewTime(time.Now().Add(-age)), Labels: labels,
	}}
}

// Each delivery calls Reconcile once, so that one table is for both.
func TestServerless_DeletesOrAnswersWhen(t *testing.T) {
	t.Parallel()
	const key = "team-a/cache"
	for name, c := range map[string]struct {
		key     string
		object  func() *corev1.ConfigMap // nil: there is none
		fails   string                   // the verb that the API server fails
		status  int
		after   string
		deleted bool
	}{
		"young":               {key: key, object: func() *corev1.ConfigMap { return configMap(time.Minute, map[string]string{label: "20m"}) }, status: 204, after: "19m0s"},
		"old enough":          {key: key, object: func() *corev1.ConfigMap { return configMap(20*time.Minute, map[string]string{label: "20m"}) }, status: 204, deleted: true},
		"long overdue":        {key: "team-a%2Fcache", object: func() *corev1.ConfigMap { return configMap(time.Hour, map[string]string{label: "20m"}) }, status: 204, deleted: true},
		"not ours":            {key: key, object: func() *corev1.ConfigMap { return configMap(time.Hour, nil) }, status: 204},
		"not a duration":      {key: key, object: func() *corev1.ConfigMap { return configMap(time.Hour, map[string]string{label: "soon"}) }, status: 204},
		"gone":                {key: key, status: 204},
		"reading fails":       {key: key, fails: "get", status: 503},
		"deleting fails":      {key: key, object: func() *corev1.ConfigMap { return configMap(time.Hour, map[string]string{label: "20m"}) }, fails: "delete", status: 503},
		"no key":              {status: 400},
		"a key that is none":  {key: "a/b/c", status: 503},
		"an encoding of none": {key: "%zz", status: 400},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				client := fake.NewClientset()
				if c.object != nil {
					client = fake.NewClientset(c.object())
				}
				client.PrependReactor(c.fails, "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
					return c.fails != "", nil, errors.New("no answer")
				})
				r := httptest.NewRequest("POST", "/", nil)
				r.Header.Set("Ce-Reschedulekey", c.key)
				rw := httptest.NewRecorder()
				expiry{configMaps(client)}.ServeHTTP(rw, r)
				if after := rw.Header().Get("Reschedule-After"); rw.Code != c.status || after != c.after {
					t.Errorf("%d, Reschedule-After %q; want %d, %q: %s", rw.Code, after, c.status, c.after, rw.Body)
				}
				if deleted := c.object != nil && !there(t, client); deleted != c.deleted {
					t.Errorf("deleted: %t, want %t", deleted, c.deleted)
				}
			})
		})
	}
}

// An object that changed since it was read is not deleted.
func TestReconcile_DeletesOnlyWhatItRead(t *testing.T) {
	t.Parallel()
	client := fake.NewClientset(configMap(time.Hour, map[string]string{label: "20m"}))
	e := expiry{configMaps(client)}
	if _, err := e.Reconcile(t.Context(), "team-a/cache"); err != nil {
		t.Fatal(err)
	}
	for _, action := range client.Actions() {
		if d, ok := action.(clienttesting.DeleteAction); ok {
			p := d.GetDeleteOptions().Preconditions
			if p == nil || p.UID == nil || *p.UID != "1" || p.ResourceVersion == nil || *p.ResourceVersion != "7" {
				t.Errorf("deleted without its uid and version: %+v", p)
			}
			return
		}
	}
	t.Error("nothing was deleted")
}

// The resident form waits in memory, with ConfigMaps and with the metadata of another kind.
func TestResident_WaitsInMemory(t *testing.T) {
	t.Parallel()
	configMapResource := corev1.SchemeGroupVersion.WithResource("configmaps")
	for name, start := range map[string]func() (kind, clienttesting.ObjectTracker){
		"ConfigMaps": func() (kind, clienttesting.ObjectTracker) {
			client := fake.NewClientset(configMap(time.Minute, map[string]string{label: "20m"}))
			return configMaps(client), client.Tracker()
		},
		"metadata": func() (kind, clienttesting.ObjectTracker) {
			scheme := metadatafake.NewTestScheme()
			if err := metav1.AddMetaToScheme(scheme); err != nil {
				t.Fatal(err)
			}
			client := metadatafake.NewSimpleMetadataClient(scheme, &metav1.PartialObjectMetadata{
				TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
				ObjectMeta: configMap(time.Minute, map[string]string{label: "20m"}).ObjectMeta,
			})
			return metadataOf(client, configMapResource), client.Tracker()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				of, objects := start()
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() { ended <- resident(ctx, of) }()
				time.Sleep(18 * time.Minute)
				if _, err := objects.Get(configMapResource, "team-a", "cache"); err != nil {
					t.Errorf("deleted before its time: %v", err)
				}
				time.Sleep(2 * time.Minute)
				if _, err := objects.Get(configMapResource, "team-a", "cache"); !apierrors.IsNotFound(err) {
					t.Errorf("still there after its time: %v", err)
				}
				cancel()
				if err := <-ended; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func there(t *testing.T, client *fake.Clientset) bool {
	t.Helper()
	object, err := client.Tracker().Get(corev1.SchemeGroupVersion.WithResource("configmaps"), "team-a", "cache")
	if err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	return object != nil && err == nil
}
