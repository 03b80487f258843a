package main

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// memory is a recorder.
func memory(t *testing.T) recorder {
	t.Helper()
	type record struct {
		Body []byte `json:"body"`
	}
	records := []record{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			_ = json.NewEncoder(w).Encode(records)
			return
		}
		body, _ := io.ReadAll(r.Body)
		records = append(records, record{body})
	}))
	t.Cleanup(s.Close)
	return recorder{s.URL}
}

// The steps of a script run one after the other, in any process.
func TestPerformer_RunsTheStepsInOrder(t *testing.T) {
	t.Parallel()
	o := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a"}}
	c, to := fake.NewClientBuilder().WithObjects(o).Build(), memory(t)
	run := func() string {
		p := performer{Client: c, recorder: to, kind: "ConfigMap", object: func() client.Object { return &corev1.ConfigMap{} }} // a process
		result, err := p.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "ns", Name: "a"}})
		if err != nil {
			return err.Error()
		}
		return result.RequeueAfter.String()
	}
	var got []string
	for _, steps := range []string{"after=2s, error, own", "error, after=1s"} {
		o.Annotations = map[string]string{script: steps}
		if err := c.Update(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		for range 4 {
			got = append(got, run())
		}
	}
	if want := []string{"2s", "as the script says", "0s", "0s", "as the script says", "1s", "1s", "1s"}; !slices.Equal(got, want) {
		t.Errorf("it did %q, want %q", got, want)
	}

	if err := c.Delete(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if got := run(); got != "0s" {
		t.Errorf("when the object is gone it does %q", got)
	}
	runs, err := to.runs(t.Context())
	if err != nil || len(runs) != 18 {
		t.Fatalf("the recorder has %d records, want two of each run: %v", len(runs), err)
	}
	if last := runs[len(runs)-1]; last.Key != "ConfigMap/ns/a" || last.Data.Step != "gone" || last.End.IsZero() {
		t.Errorf("the last record is %+v", last)
	}
}
