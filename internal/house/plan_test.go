package house

// rule is what a package of the module may import.
type rule struct {
	may   []string // packages of the module; "x/..." is x and all below it
	never []string // packages, with all below them, that it must not reach at any depth
	not   []string // packages, with all below them, that it must not import itself
}

var (
	k8s = []string{"k8s.io", "knative.dev", "sigs.k8s.io"}
	// pure packages compute; edge packages use HTTP, but not Kubernetes.
	pure = append([]string{"net/http", "os"}, k8s...)
	// heavy is linked in with a client of every API group. The adapter runs in every
	// cluster and waits most of the time: its linked code is most of its cost.
	heavy = []string{
		module + "pkg/client/clientset", module + "pkg/client/informers", module + "pkg/client/injection",
		"k8s.io/client-go/kubernetes", "k8s.io/client-go/informers", "k8s.io/client-go/discovery", "k8s.io/client-go/applyconfigurations",
		"k8s.io/api/apps", "k8s.io/api/networking", "k8s.io/api/rbac", "k8s.io/api/resource", "k8s.io/api/storage",
		"knative.dev/pkg/client", "knative.dev/pkg/controller", "knative.dev/pkg/injection", "knative.dev/pkg/reconciler", "knative.dev/pkg/resolver",
		"knative.dev/eventing/pkg/apis/eventing", "knative.dev/eventing/pkg/apis/flows", "knative.dev/eventing/pkg/apis/messaging",
		"knative.dev/eventing/pkg/apis/sinks", "knative.dev/eventing/pkg/apis/sources", "knative.dev/eventing/pkg/auth",
		"knative.dev/eventing/pkg/client", "knative.dev/eventing/pkg/eventfilter", "knative.dev/eventing/pkg/eventingtls",
		"golang.org/x/net/trace", "html/template", // the linker keeps all methods for them; see the Makefile
	}
)

// plan has every package of the module that is not generated. A package that is
// missing here fails, so the plan cannot fall behind the tree.
//
// The packages above the store reach net/http and os through Pebble and its error
// reports; the test can only check that they do not import them directly.
var plan = map[string]rule{
	"pkg/apis/sources":          {never: []string{module + "pkg/adapter"}},
	"pkg/apis/sources/v1alpha1": {may: []string{"pkg/apis/sources", "pkg/apis/sources/calendar"}, never: []string{module + "pkg/adapter"}},

	"pkg/apis/sources/expression": {never: append([]string{module + "pkg/adapter"}, k8s...), not: pure},

	"pkg/apis/sources/calendar": {never: append([]string{module + "pkg", "net/http"}, k8s...), not: []string{"os"}},

	"pkg/apis/sources/ceilings": {may: []string{"pkg/apis/sources/v1alpha1"}, never: []string{module + "pkg/adapter"}, not: []string{"net/http", "os"}},

	"pkg/apis/sources/features": {never: append([]string{module + "pkg/adapter"}, heavy...), not: []string{"net/http", "os"}},

	"pkg/apis/sources/capacity": {may: []string{"pkg/apis/sources/v1alpha1"}, never: append([]string{module + "pkg/adapter"}, heavy...), not: []string{"net/http", "os"}},

	"pkg/apis/sources/relist": {never: append([]string{module + "pkg"}, heavy...), not: []string{"os"}},

	"pkg/apis/sources/optional": {never: append([]string{module + "pkg"}, heavy...), not: []string{"net/http", "os"}},

	// The control plane. The planes meet only in pkg/apis.
	"pkg/reconciler/reschedulesource": {
		may:   []string{"pkg/apis/sources/...", "pkg/client/...", "pkg/reconciler/reschedulesource/resources"},
		never: []string{module + "pkg/adapter"},
	},
	"pkg/reconciler/reschedulesource/resources": {
		may:   []string{"pkg/apis/sources/..."},
		never: []string{module + "pkg/adapter"}, not: []string{"net/http", "os"},
	},
	"cmd/controller": {
		may:   []string{"config", "pkg/apis/sources/relist", "pkg/reconciler/reschedulesource", "pkg/reconciler/reschedulesource/resources"},
		never: []string{module + "pkg/adapter"},
	},
	// Manifests that a program applies itself.
	"config": {never: append([]string{"net/http"}, k8s...)},

	"pkg/adapter/schedule": {may: []string{"pkg/duration", "pkg/apis/sources/calendar"}, never: append([]string{"net/http"}, k8s...), not: []string{"os"}},
	"pkg/adapter/budget":   {never: pure},
	"pkg/adapter/loglimit": {never: pure},
	"pkg/adapter/timer":    {may: []string{"pkg/adapter/schedule"}, never: pure},
	"pkg/adapter/store":    {may: []string{"pkg/adapter/schedule"}, never: k8s, not: []string{"net/http"}},
	"pkg/adapter/recent":   {never: pure},
	"pkg/adapter/queue": {
		may:   []string{"pkg/adapter/recent", "pkg/adapter/schedule", "pkg/adapter/store", "pkg/adapter/timer"},
		never: k8s, not: pure,
	},
	"pkg/adapter/scale": {
		may: []string{"pkg/adapter/schedule", "pkg/adapter/watch/objects"}, never: append([]string{module + "pkg/adapter/queue"}, k8s...), not: []string{"net/http"},
	},
	"pkg/adapter/busy": {may: []string{"pkg/adapter/scale"}, never: k8s},
	"pkg/adapter/dispatch": {
		may:   []string{"pkg/adapter/schedule", "pkg/adapter/queue", "pkg/adapter/budget", "pkg/adapter/loglimit", "pkg/adapter/scale"},
		never: k8s, not: pure,
	},
	"pkg/adapter/cloudevent": {
		may:   []string{"pkg/adapter/schedule"},
		never: append([]string{module + "pkg/adapter/store"}, k8s...), not: []string{"os"},
	},
	"pkg/adapter/sink": {
		may:   []string{"pkg/adapter/schedule", "pkg/adapter/cloudevent", "pkg/adapter/budget", "pkg/adapter/loglimit", "pkg/hostname"},
		never: append([]string{module + "pkg/adapter/store", module + "pkg/adapter/queue"}, k8s...), not: []string{"os"},
	},
	"pkg/adapter/ingest": {
		may:   []string{"pkg/adapter/schedule", "pkg/adapter/queue", "pkg/adapter/cloudevent", "pkg/adapter/access", "pkg/adapter/budget", "pkg/apis/sources/expression"},
		never: k8s, not: []string{"os"},
	},
	"pkg/adapter/backup": {may: []string{"pkg/adapter/store"}, never: k8s},
	"pkg/adapter/access": {may: []string{"pkg/adapter/schedule"}, never: k8s},
	"pkg/adapter/api": {
		may:   []string{"pkg/adapter/recent", "pkg/adapter/schedule", "pkg/adapter/cloudevent", "pkg/adapter/access", "pkg/adapter/queue", "pkg/adapter/ingest", "pkg/adapter/budget", "pkg/hostname"},
		never: k8s,
	},
	"pkg/adapter/listener": {may: []string{"pkg/adapter/budget", "pkg/adapter/loglimit"}, never: k8s, not: []string{"os"}},
	// What the API server is asked is separate from the engine, so that what makes the
	// calls does not reach the queue.
	"pkg/adapter/watch/objects": {never: append([]string{module + "pkg/adapter/queue", "net/http"}, k8s...)},
	"pkg/adapter/watch": {
		may: []string{"pkg/adapter/schedule", "pkg/adapter/store", "pkg/adapter/queue", "pkg/adapter/budget", "pkg/adapter/watch/objects", "pkg/apis/sources/expression"},
		not: []string{"net/http", "os", "k8s.io/client-go", "k8s.io/api", "knative.dev"},
	},
	"pkg/adapter/sources": {
		may: []string{"pkg/adapter/schedule", "pkg/adapter/access", "pkg/adapter/scale", "pkg/adapter/watch/objects", "pkg/apis/sources/..."},
		not: []string{"net/http"},
	},
	"pkg/adapter/inspect": {
		may:   []string{"pkg/adapter/schedule", "pkg/adapter/store"},
		never: k8s, not: []string{"net/http"},
	},
	// Kubernetes. Who may call is decided without the HTTP edge and the queue.
	"pkg/adapter/kube": {
		may:   []string{"pkg/adapter/schedule", "pkg/adapter/budget", "pkg/adapter/busy", "pkg/adapter/scale", "pkg/adapter/watch/objects", "pkg/apis/sources/..."},
		never: append([]string{module + "pkg/reconciler", module + "pkg/adapter/api", module + "pkg/adapter/queue"}, heavy...), not: []string{"os"},
	},
	"pkg/adapter/access/guard": {
		may:   []string{"pkg/adapter/schedule", "pkg/adapter/access", "pkg/adapter/budget", "pkg/adapter/cloudevent", "pkg/adapter/kube", "pkg/adapter/loglimit", "pkg/apis/sources/...", "pkg/client/..."},
		never: append([]string{module + "pkg/reconciler", module + "pkg/adapter/api", module + "pkg/adapter/queue"}, heavy...), not: []string{"os"},
	},
	"pkg/adapter/cluster": {
		may: []string{
			"pkg/adapter/schedule", "pkg/adapter/sources", "pkg/adapter/scale", "pkg/adapter/access", "pkg/adapter/access/guard", "pkg/adapter/kube", "pkg/adapter/watch/objects", "pkg/apis/sources/...", "pkg/client/...", "pkg/printable",
		},
		never: append([]string{module + "pkg/reconciler", module + "pkg/adapter/api", module + "pkg/adapter/queue"}, heavy...), not: []string{"os"},
	},
	"pkg/adapter": {never: append([]string{module + "pkg/reconciler"}, heavy...), may: []string{
		"pkg/adapter/schedule", "pkg/adapter/store", "pkg/adapter/queue", "pkg/adapter/dispatch", "pkg/adapter/sink",
		"pkg/adapter/backup", "pkg/adapter/ingest", "pkg/adapter/api", "pkg/adapter/scale", "pkg/adapter/sources", "pkg/adapter/cluster", "pkg/adapter/budget", "pkg/adapter/listener", "pkg/adapter/watch",
		"pkg/adapter/group", "pkg/hostname",
	}},
	// For the Events and the log of the adapter, and for the command line.
	"pkg/printable": {never: append([]string{module + "pkg", "net/http"}, k8s...), not: []string{"os"}},
	"pkg/hostname":  {never: append([]string{module + "pkg", "net/http"}, k8s...), not: []string{"os"}},
	"pkg/duration":  {never: append([]string{module + "pkg", "net/http"}, k8s...), not: []string{"os"}},

	"pkg/adapter/command": {
		may:   []string{"pkg/adapter", "pkg/adapter/backup", "pkg/adapter/group", "pkg/adapter/inspect", "pkg/printable"},
		never: append([]string{module + "pkg/reconciler", "go.etcd.io"}, heavy...),
	},
	// etcd's server costs megabytes by being linked: the single adapter is without it.
	"cmd/adapter": {
		may:   []string{"pkg/adapter/command", "pkg/adapter/group"},
		never: append([]string{module + "pkg/reconciler", "go.etcd.io"}, heavy...),
	},
	"cmd/adapter-replicated": {
		may:   []string{"pkg/adapter/command", "pkg/adapter/group", "pkg/adapter/replica", "pkg/adapter/replica/etcdlog"},
		never: []string{module + "pkg/reconciler"},
	},

	// It joins the group's ownership with the state, and does not know the adapter around it.
	"pkg/adapter/group": {
		may: []string{
			"pkg/adapter/api", "pkg/adapter/backup", "pkg/adapter/budget", "pkg/adapter/dispatch", "pkg/adapter/listener", "pkg/adapter/loglimit", "pkg/adapter/queue", "pkg/adapter/replica", "pkg/adapter/schedule", "pkg/adapter/store",
			"pkg/adapter/watch", "pkg/hostname",
		},
		never: []string{"go.etcd.io", "k8s.io/client-go", "k8s.io/api/", "knative.dev"}, // watch has selectors of labels
	},
	"pkg/adapter/replica":         {never: append([]string{module + "pkg/adapter/store", "go.etcd.io", "net/http"}, k8s...), not: []string{"os"}},
	"pkg/adapter/replica/etcdlog": {may: []string{"pkg/adapter/listener", "pkg/adapter/replica"}, not: k8s},
	"pkg/adapter/replica/replicatest": {
		may: []string{"pkg/adapter/replica"}, never: append([]string{"go.etcd.io"}, k8s...),
	},

	"pkg/adapter/store/storetest": {
		may:   []string{"pkg/adapter/schedule", "pkg/adapter/store"},
		never: k8s,
	},

	// Examples are copied, so they import nothing of the module.
	"examples/operator": {never: append([]string{module + "pkg", module + "internal"}, k8s...)},
	"examples/demo":     {never: append([]string{module + "pkg", module + "internal"}, k8s...)},

	// What tests of many packages need.
	"internal/certs": {},
	"internal/heap":  {},

	"internal/house": {},
	"internal/sim": {may: []string{
		"pkg/adapter/schedule", "pkg/adapter/store", "pkg/adapter/queue", "pkg/adapter/dispatch", "pkg/adapter/scale", "pkg/adapter/watch/objects",
	}},

	// Tests of the real binary use the contract only.
	"test/internal/harness":  {never: []string{module + "pkg", module + "internal"}},
	"test/blackbox":          {may: []string{"test/internal/harness"}},
	"test/crash":             {may: []string{"test/internal/harness"}},
	"test/replicated":        {may: []string{"test/internal/harness"}},
	"test/replicated/member": {may: []string{"pkg/adapter/command", "pkg/adapter/group", "pkg/adapter/replica", "pkg/adapter/replica/etcdlog"}},
	"test/hostile":           {may: []string{"test/internal/harness"}},
	"test/expiry":            {never: []string{module + "pkg", module + "internal"}},
	// It compares the schema with what the adapter reads of a file.
	"test/manifests":     {may: []string{"pkg/apis/sources/...", "pkg/adapter/schedule", "pkg/adapter/sources"}},
	"test/monitoring":    {may: []string{"test/internal/harness"}},
	"test/internal/kube": {may: []string{"test/internal/harness"}, never: []string{module + "pkg", module + "internal"}},
	"test/cluster":       {may: []string{"test/internal/harness", "test/internal/kube", "pkg/apis/sources/...", "pkg/client/..."}},
	"test/e2e":           {may: []string{"test/internal/harness", "test/internal/kube", "pkg/apis/sources/...", "pkg/client/..."}},

	"test/internal/kube/cluster": {may: []string{"test/internal/harness", "test/internal/kube"}},

	// Images of the tests are small, and use the contract only.
	"test/e2e/images/function": {never: []string{module + "pkg", module + "internal"}},
	"test/e2e/images/nodekill": {never: append([]string{module}, k8s...)},
	"test/e2e/images/recorder": {never: append([]string{module + "pkg", module + "internal"}, k8s...)},
}

// planned are packages that may not exist yet; empty when the work is done.
var planned = map[string]bool{}

// generated are trees of a generator: they are not on the plan, and every file in
// them must be generated.
var generated = []string{"pkg/client"}

// forTests are packages that only tests may import.
var forTests = []string{"pkg/adapter/store/storetest", "pkg/adapter/replica/replicatest", "internal/...", "test/..."}

// vague are names that do not say what a package contains.
var vague = []string{"util", "utils", "common", "helper", "helpers", "type", "types", "misc", "shared", "base", "lib", "model", "models"}

// sleepers are the files of tests that wait for a time on the real clock, with the reason.
// The list may only get shorter. Inside a testing/synctest bubble time.Sleep is how fake
// time passes: a file that imports it needs no entry.
var sleepers = map[string]string{
	"bench/driver/main_test.go":                 "a measurement lasts",
	"test/cluster/idle_test.go":                 "a measurement lasts",
	"pkg/adapter/calledoff_test.go":             "a change meets an attempt at any moment of its way",
	"sdk/controller/adapter_test.go":            "a process is killed at any moment of an answer's way",
	"test/cluster/faults_test.go":               "the API server is away for a time; runs that must not come are waited for",
	"pkg/adapter/replica/etcdlog/close_test.go": "members of etcd end at intervals; who leads is asked for again and again",
	"pkg/adapter/listener/connections_test.go":  "the server is asked again and again whether it has the connection",
	"test/replicated/faults_test.go":            "a disk is filled step by step, as the member sees it",
	"sdk/controller/lost_test.go":               "a time of the operator's memory comes",
	"test/page/main_test.go":                    "a source works for a while before its picture is taken",
	"pkg/adapter/replica/disk_test.go":          "it is called in bubbles only",
}

// Most methods and fields of a type.
const maxMethods, maxFields = 40, 20

// size is how many methods and fields a type has.
type size struct{ methods, fields int }
