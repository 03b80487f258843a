// Command hook is a hook for Metacontroller: a program that knows neither Kubernetes nor
// this project. A Preview has a ConfigMap until its time is over.
package main

import (
	"cmp"
	"encoding/json"
	"log"
	"net/http"
	"os"
	"time"
)

type object struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Metadata   metadata `json:"metadata"`
	Data       any      `json:"data,omitempty"`
}

type metadata struct {
	Name              string    `json:"name"`
	CreationTimestamp time.Time `json:"creationTimestamp,omitzero"`
}

type request struct {
	Parent struct {
		Metadata metadata `json:"metadata"`
		Spec     struct {
			TTLSeconds float64           `json:"ttlSeconds"`
			Data       map[string]string `json:"data"`
		} `json:"spec"`
	} `json:"parent"`
	Children map[string]map[string]json.RawMessage `json:"children"`
}

type response struct {
	Status             status   `json:"status"`
	Children           []object `json:"children"`
	ResyncAfterSeconds float64  `json:"resyncAfterSeconds,omitempty"`
}

type status struct {
	Phase      string `json:"phase"`
	ConfigMaps int    `json:"configMaps"` // that were seen
}

func sync(r request, now time.Time) response {
	is := response{Status: status{Phase: "Active", ConfigMaps: len(r.Children["ConfigMap.v1"])}}
	left := r.Parent.Metadata.CreationTimestamp.Add(time.Duration(r.Parent.Spec.TTLSeconds * float64(time.Second))).Sub(now)
	if left <= 0 {
		is.Status.Phase = "Expired"
		return is // without children: the ConfigMap is deleted
	}
	is.ResyncAfterSeconds = left.Seconds()
	is.Children = []object{{APIVersion: "v1", Kind: "ConfigMap", Metadata: metadata{Name: r.Parent.Metadata.Name}, Data: r.Parent.Spec.Data}}
	return is
}

func main() {
	http.HandleFunc("POST /sync", func(w http.ResponseWriter, r *http.Request) {
		var observed request
		if err := json.NewDecoder(r.Body).Decode(&observed); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(sync(observed, time.Now())) // the caller is gone, and calls again
	})
	server := http.Server{Addr: cmp.Or(os.Getenv("LISTEN"), ":8080"), ReadHeaderTimeout: 10 * time.Second}
	log.Fatal(server.ListenAndServe())
}
