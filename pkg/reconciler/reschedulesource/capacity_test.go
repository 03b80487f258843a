package reschedulesource

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	clientgotesting "k8s.io/client-go/testing"

	"github.com/reschedule-dev/reschedule/pkg/apis/sources/capacity"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
	"github.com/reschedule-dev/reschedule/pkg/client/clientset/versioned/fake"
	"github.com/reschedule-dev/reschedule/pkg/reconciler/reschedulesource/resources"
)

// large is a source that a megabyte of memory has no place for.
func large() *v1alpha1.RescheduleSource {
	s := source()
	s.Spec.Sink.CACerts = new(strings.Repeat("c", 1<<20))
	s.Spec.Watch = &v1alpha1.RescheduleSourceWatch{ServiceAccountName: "watcher"}
	return s
}

// A source that is too large to be kept in memory is read when it is reconciled: with the stand-in alone
// it would lose its identity, its address and its group.
func TestStandIn_IsReadWhole(t *testing.T) {
	t.Parallel()
	o, err := trimmer{capacity.New(capacity.Config{Total: 1 << 20, Copies: 1})}.trim(large())
	if err != nil {
		t.Fatal(err)
	}
	kept := o.(*v1alpha1.RescheduleSource)
	if !capacity.IsStandIn(kept) || kept.Spec.Sink.CACerts != nil || !slices.Equal(resources.Accounts(kept), []string{"ops:watcher"}) {
		t.Fatalf("kept %+v", kept)
	}
	reported := kept.DeepCopy()
	reported.Status.Refused, reported.ResourceVersion = "too large", "later"
	if !concerns(kept, reported) {
		t.Error("the adapter's report about a stand-in does not concern the controller")
	}
	stored := large()
	stored.Annotations = map[string]string{"sources.reschedule.dev/refused": "forged"}
	client := fake.NewSimpleClientset(stored)
	r := &Reconciler{client: client}
	whole, err := r.whole(t.Context(), kept)
	if err != nil || whole == nil || whole.Spec.Sink.CACerts == nil || capacity.IsStandIn(whole) {
		t.Errorf("read %v, %v", whole, err)
	}
	client.ClearActions()
	if again, err := r.whole(t.Context(), whole); again != whole || err != nil || len(client.Actions()) != 0 {
		t.Errorf("a source that is kept is read: %v, %v", client.Actions(), err)
	}
	other := kept.DeepCopy()
	other.UID = types.UID("another")
	if err := r.ReconcileKind(t.Context(), other); err != nil {
		t.Errorf("one of another uid: %v", err)
	}
	if err := (&Reconciler{client: fake.NewSimpleClientset()}).ReconcileKind(t.Context(), kept); err != nil {
		t.Errorf("one that is gone: %v", err)
	}
	for _, a := range client.Actions() {
		if _, get := a.(clientgotesting.GetAction); !get {
			t.Errorf("%v", a)
		}
	}
}

// The manifest has the memory limit that the bound is made for: with a lower one lists would not fit, and
// with a higher one objects would take more than the page says.
func TestCapacity_FitsTheManifest(t *testing.T) {
	t.Parallel()
	manifest, err := os.ReadFile("../../../config/500-controller.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("- name: GOMEMLIMIT\n          value: %dMiB\n", shippedLimit>>20); !strings.Contains(string(manifest), want) {
		t.Errorf("the manifest does not have %q", want)
	}
	if 3*sourceBytes > shippedLimit {
		t.Error("a list does not fit beside what is kept")
	}
}
