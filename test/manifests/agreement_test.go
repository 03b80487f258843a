package manifests

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
)

const (
	head = "apiVersion: sources.reschedule.dev/v1alpha1\nkind: RescheduleSource\nmetadata: {name: git-repos, namespace: ops}\n"
	sink = "sink: {uri: 'http://x'}\n"
	ref  = "ref: {apiVersion: v1, kind: Service, name: x}"

	secrets = "apiVersion: v1, kind: Secret"
)

// watching is a spec that watches these resources.
func watching(resources ...string) string {
	return sink + "watch: {resources: [{" + strings.Join(resources, "}, {") + "}]}"
}

// watchingMany is a spec that watches so many resources.
func watchingMany(n int) string {
	resources := make([]string, n)
	for i := range resources {
		resources[i] = fmt.Sprintf("apiVersion: group%d.example.com/v1, kind: K%d, key: '%s'", i, i, strings.Repeat("a", 4096))
	}
	return watching(resources...)
}

// withSpec is a source of that spec.
func withSpec(spec string) string {
	if spec == "" {
		return head + "spec: {}\n"
	}
	return head + "spec:\n  " + strings.ReplaceAll(strings.TrimRight(spec, "\n"), "\n", "\n  ") + "\n"
}

// judge has the API server and Validate judge the same object.
func judge(t *testing.T, text string) (api []string, validate error) {
	t.Helper()
	_, api = server(t).admit(t.Context(), fromYAML(t, text))
	var o v1alpha1.RescheduleSource
	if err := yaml.UnmarshalStrict([]byte(text), &o); err != nil {
		return api, err
	}
	o.SetDefaults(t.Context())
	if err := o.Validate(t.Context()); err != nil {
		return api, err
	}
	return api, nil
}

func certificates(t *testing.T) string {
	server := httptest.NewTLSServer(nil)
	t.Cleanup(server.Close)
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
}

func quote(t *testing.T, s string) string {
	t.Helper()
	raw, err := yaml.Marshal(map[string]string{"CACerts": s})
	if err != nil {
		t.Fatal(err)
	}
	return "sink:\n  uri: http://x\n  " + strings.ReplaceAll(strings.TrimRight(string(raw), "\n"), "\n", "\n  ")
}

// Good objects are taken.
func TestCRD_AcceptsGoodObjects(t *testing.T) {
	t.Parallel()
	cert := certificates(t)
	for name, spec := range map[string]string{
		"the least":                   sink,
		"a reference":                 "sink: {" + ref + "}",
		"a reference elsewhere":       "sink: {ref: {apiVersion: serving.knative.dev/v1, kind: Service, name: x, namespace: other, address: http}}",
		"a path below a reference":    "sink: {" + ref + ", uri: '/path?a=%20b'}",
		"a relative path":             "sink: {" + ref + ", uri: path/to:x}",
		"an empty uri beside it":      "sink: {" + ref + ", uri: ''}",
		"a uri with everything":       "sink: {uri: 'HTTPS://user:pw@sink.example.:8443/a%2Fb?c=d#e', audience: a}",
		"a uri of IPv6":               "sink: {uri: 'http://[2001:db8::1]:80/'}",
		"a uri of IPv4":               "sink: {uri: 'http://10.0.0.1:65535'}",
		"every policy":                sink + "conflictPolicy: keep\ningest: {conflictPolicy: fail}",
		"limits at their least":       sink + "limits: {maxInFlight: 1, maxPerSecond: 0, maxPending: 1}",
		"limits at their most":        sink + "limits: {maxInFlight: 2147483647, maxPerSecond: 2147483647, maxPending: 9007199254740991}",
		"Go durations":                sink + "delay: 1h30m0.5s\nmaxInterval: 0s",
		"Go durations of every unit":  sink + "delay: 1h1m1s1ms1us1µs1μs1ns",
		"Go durations, short":         sink + "delay: 1.h\nmaxInterval: .5s",
		"ISO durations":               sink + "delay: P1W\nmaxInterval: PT0.5S",
		"ISO durations of every unit": sink + "delay: P1W2DT3H4M5,5S\nmaxInterval: PT,5S",
		"a hundred years":             sink + "delay: 876600h\nmaxInterval: P36525D",
		"delivery":                    sink + "delivery: {retry: 0, backoffPolicy: linear, backoffDelay: PT0S, timeout: PT0.1S, backoffMax: PT0S, retryAfterMax: PT0S, format: json, deadLetterSink: {uri: 'https://y'}}",
		"overrides":                   sink + "ceOverrides: {extensions: {team: platform, x1: 'ü \"', empty: ''}}",
		"every policy for events":     sink + "ingest: {policies: [replace, earliest, latest, keep, fail], maxDelay: PT1H, authentication: required}",
		"no policy for events":        sink + "ingest: {policies: []}",
		"bytes as a number":           sink + "limits: {maxBytes: 1}",
		"bytes as a quantity":         sink + "limits: {maxBytes: 10Gi}",
		"access and audit":            sink + "access: rbac\naudit: true",
		"empty parts":                 sink + "delivery: {}\ningest: {}\nlimits: {}\nceOverrides: {}",
		"dead letters":                sink + "deadLetters: {keep: 0, maxAge: P7D}",
		"many dead letters":           sink + "deadLetters: {keep: 1000}",
		"warm-up and jitter":          sink + "warmUp: 3s\njitter: 0.25",
		"all the jitter there is":     sink + "jitter: 1",
		"ingest":                      sink + "ingest: {key: event.id, when: 'true'}\nsuspend: true",
		"the least to watch":          watching(secrets),
		"the most to watch":           watchingMany(32),
		"everything of watch": sink + "watch: {serviceAccountName: a.b-c, namespaceSelector: {matchExpressions: [{key: a.b/c, operator: NotIn, values: [d]}]}, " +
			"resources: [{apiVersion: apps/v1, kind: Deployment, selector: {matchLabels: {a: b, c: ''}}, owner: {apiVersion: example.com/v1, kind: Website}, changes: Spec}, " +
			"{" + secrets + ", key: object.metadata.name}], resync: {onRevision: false, over: PT1H}}",
		"all namespaces":             sink + "watch: {namespaceSelector: {}, resources: [{" + secrets + "}]}",
		"a kind of two groups":       watching("apiVersion: a/v1, kind: Service", "apiVersion: v1, kind: Service"),
		"two kinds of a group":       watching(secrets, "apiVersion: v1, kind: ConfigMap"),
		"a kind with two owners":     watching(secrets+", owner: {apiVersion: a/v1, kind: A}", secrets+", owner: {apiVersion: b/v1, kind: A}", secrets),
		"a kind with two changes":    watching(secrets+", changes: Spec", secrets+", changes: Any"),
		"a kind, also with keys":     watching(secrets, secrets+", key: a", secrets+", key: b"),
		"a key that is empty":        watching(secrets + ", owner: {apiVersion: a/v1, kind: A}, key: ''"),
		"a selector that is at hand": watching(secrets + ", selector: {matchExpressions: [{key: a, operator: Exists}, {key: b, operator: DoesNotExist, values: []}]}"),
		"a certificate":              quote(t, cert),
		"two with text between":      quote(t, cert+"# the next\n"+cert),
		"a whole bundle":             quote(t, strings.Repeat("# CA\n"+cert, 150)),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			api, validate := judge(t, withSpec(spec))
			if len(api) > 0 {
				t.Errorf("the API server refuses: %s", strings.Join(api, "\n"))
			}
			if validate != nil {
				t.Errorf("Validate refuses: %v", validate)
			}
		})
	}
}

// What the API server says has to name the field and tell what to do.
func TestCRD_RefusesBadObjectsWithAdvice(t *testing.T) {
	t.Parallel()
	cert := certificates(t)
	const overrides = "must not name an attribute of CloudEvents itself: id, source, type, specversion"
	for name, c := range map[string]struct{ spec, says string }{
		"no spec at all":                     {"", "spec.sink: Required value"},
		"no sink":                            {"delay: 1s", "spec.sink: Required value"},
		"an empty sink":                      {"sink: {}", "sink needs a ref (an object with an address"},
		"an empty uri":                       {"sink: {uri: ''}", "sink needs a ref"},
		"a relative uri alone":               {"sink: {uri: /path}", "sink.uri must be an absolute http or https URL with a host"},
		"a uri without a host":               {"sink: {uri: 'http:///path'}", "sink.uri must be an absolute"},
		"an opaque uri":                      {"sink: {uri: 'mailto:x@y'}", "sink.uri must be an absolute"},
		"an absolute uri beside a ref":       {"sink: {uri: 'http://x', " + ref + "}", "sink.uri must be a relative path beside a ref; leave out one of the two"},
		"a ref without a name":               {"sink: {ref: {apiVersion: v1, kind: Service}}", "spec.sink.ref.name: Required value"},
		"a ref without a kind":               {"sink: {ref: {apiVersion: v1, name: x}}", "spec.sink.ref.kind: Required value"},
		"a ref without an apiVersion":        {"sink: {ref: {kind: Service, name: x}}", "spec.sink.ref.apiVersion: Required value"},
		"a ref with an empty name":           {"sink: {ref: {apiVersion: v1, kind: Service, name: ''}}", "spec.sink.ref.name"},
		"a ref by group":                     {"sink: {ref: {group: apps, kind: Service, name: x}}", "unknown field spec.sink.ref.group"},
		"certificates that are none":         {quote(t, "nonsense"), "sink.CACerts must be one or more whole certificates in PEM format"},
		"empty certificates":                 {quote(t, ""), "sink.CACerts must be"},
		"a damaged certificate first":        {quote(t, strings.Replace(cert, "\n", "\n!", 1)+cert), "sink.CACerts must be"},
		"a damaged certificate last":         {quote(t, cert+strings.Replace(cert, "\n", "\n!", 1)), "sink.CACerts must be"},
		"half a certificate":                 {quote(t, cert[:len(cert)/2]), "sink.CACerts must be"},
		"a certificate of nothing":           {quote(t, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")}))), "sink.CACerts must be"},
		"a key for a certificate":            {quote(t, strings.ReplaceAll(cert, "CERTIFICATE", "PRIVATE KEY")), "sink.CACerts must be"},
		"an unknown policy for events":       {sink + "ingest: {policies: [keep, never]}", "spec.ingest.policies[1]"},
		"a delay of events that is none":     {sink + "ingest: {maxDelay: soon}", "ingest.maxDelay must be a duration"},
		"unknown authentication":             {sink + "ingest: {authentication: 'off'}", "spec.ingest.authentication"},
		"unknown access":                     {sink + "access: everyone", "spec.access"},
		"no bytes":                           {sink + "limits: {maxBytes: 0}", "limits.maxBytes must be a quantity of bytes over 0"},
		"negative bytes":                     {sink + "limits: {maxBytes: -1Gi}", "limits.maxBytes must be a quantity of bytes over 0"},
		"dead letters below 0":               {sink + "deadLetters: {keep: -1}", "spec.deadLetters.keep"},
		"too many dead letters":              {sink + "deadLetters: {keep: 1001}", "spec.deadLetters.keep"},
		"dead letters without an age":        {sink + "deadLetters: {maxAge: soon}", "deadLetters.maxAge must be a duration"},
		"a warm-up that is none":             {sink + "warmUp: '3'", "warmUp must be a duration"},
		"too much jitter":                    {sink + "jitter: 1.5", "spec.jitter"},
		"jitter below 0":                     {sink + "jitter: -0.1", "spec.jitter"},
		"watching nothing":                   {sink + "watch: {}", "spec.watch.resources: Required value"},
		"watching an empty list":             {sink + "watch: {resources: []}", "spec.watch.resources"},
		"watching too much":                  {watchingMany(33), "spec.watch.resources: Too many"},
		"an account that is none":            {sink + "watch: {serviceAccountName: A, resources: [{" + secrets + "}]}", "watch.serviceAccountName must be the name of a ServiceAccount"},
		"a kind without a version":           {watching("kind: Secret"), "spec.watch.resources[0].apiVersion: Required value"},
		"a version without a kind":           {watching("apiVersion: v1"), "spec.watch.resources[0].kind: Required value"},
		"an empty kind":                      {watching("apiVersion: v1, kind: ''"), "watch.resources[].kind must be a kind such as Deployment"},
		"a plural with a group":              {watching("apiVersion: v1, kind: deployments.apps"), "watch.resources[].kind must be a kind"},
		"a version with two slashes":         {watching("apiVersion: a/b/c, kind: A"), "watch.resources[].apiVersion must be a group and version such as apps/v1, or v1"},
		"a group in capitals":                {watching("apiVersion: Apps/v1, kind: A"), "watch.resources[].apiVersion must be"},
		"an owner of no kind":                {watching(secrets + ", owner: {apiVersion: v1}"), "spec.watch.resources[0].owner.kind: Required value"},
		"an owner of a bad kind":             {watching(secrets + ", owner: {apiVersion: v1, kind: a/b}"), "watch.resources[].owner.kind must be"},
		"an owner of a bad group":            {watching(secrets + ", owner: {apiVersion: a/, kind: A}"), "watch.resources[].owner.apiVersion must be"},
		"an owner and a key":                 {watching(secrets + ", owner: {apiVersion: v1, kind: A}, key: x"), "watch.resources[].key must not be beside owner; leave out one of the two"},
		"unknown changes":                    {watching(secrets + ", changes: Status"), `supported values: "Spec", "Metadata", "Any"`},
		"a kind twice":                       {watching(secrets, secrets), "watch.resources must not have two entries of the same kind, owner, key and changes"},
		"a kind twice, with the default":     {watching(secrets, secrets+", changes: Metadata"), "watch.resources must not have two entries"},
		"a kind twice, by two selectors":     {watching(secrets+", selector: {matchLabels: {a: b}}", secrets), "watch.resources must not have two entries"},
		"a kind twice, by two versions":      {watching("apiVersion: a/v1, kind: A", "apiVersion: a/v2, kind: A"), "watch.resources must not have two entries"},
		"a key twice, with its default":      {watching(secrets+", key: x, changes: Any", secrets+", key: x"), "watch.resources must not have two entries"},
		"an owner twice, by two versions":    {watching(secrets+", owner: {apiVersion: a/v1, kind: A}", secrets+", owner: {apiVersion: a/v2, kind: A}"), "watch.resources must not have two entries"},
		"a label that is none":               {watching(secrets + ", selector: {matchLabels: {'a b': c}}"), "watch.resources[].selector.matchLabels must be named as labels are"},
		"a label's value that is none":       {watching(secrets + ", selector: {matchLabels: {a: 'b c'}}"), "spec.watch.resources[0].selector.matchLabels.a"},
		"a requirement of no label":          {watching(secrets + ", selector: {matchExpressions: [{key: '', operator: Exists}]}"), "spec.watch.resources[0].selector.matchExpressions[0].key"},
		"an unknown operator":                {watching(secrets + ", selector: {matchExpressions: [{key: a, operator: Is}]}"), `"In", "NotIn"`},
		"a requirement In nothing":           {watching(secrets + ", selector: {matchExpressions: [{key: a, operator: In}]}"), "In and NotIn need values"},
		"a requirement Exists of values":     {watching(secrets + ", selector: {matchExpressions: [{key: a, operator: Exists, values: [b]}]}"), "Exists and DoesNotExist must have none"},
		"namespaces by a bad label":          {sink + "watch: {namespaceSelector: {matchLabels: {-: c}}, resources: [{" + secrets + "}]}", "watch.namespaceSelector.matchLabels must be named as labels are"},
		"a resync over no time":              {sink + "watch: {resources: [{" + secrets + "}], resync: {over: soon}}", "watch.resync.over must be a duration"},
		"an override of id":                  {sink + "ceOverrides: {extensions: {id: x}}", overrides},
		"an override of source":              {sink + "ceOverrides: {extensions: {source: x}}", overrides},
		"an override of type":                {sink + "ceOverrides: {extensions: {type: x}}", overrides},
		"an override of specversion":         {sink + "ceOverrides: {extensions: {specversion: x}}", overrides},
		"an override of time":                {sink + "ceOverrides: {extensions: {time: x}}", overrides},
		"an override of subject":             {sink + "ceOverrides: {extensions: {subject: x}}", overrides},
		"an override of datacontenttype":     {sink + "ceOverrides: {extensions: {datacontenttype: x}}", overrides},
		"an override of dataschema":          {sink + "ceOverrides: {extensions: {dataschema: x}}", overrides},
		"an override of data":                {sink + "ceOverrides: {extensions: {data: x}}", overrides},
		"an override of the key":             {sink + "ceOverrides: {extensions: {reschedulekey: x}}", "must not begin with reschedule"},
		"an override of what we may add":     {sink + "ceOverrides: {extensions: {reschedulefoo: x}}", "must not begin with reschedule"},
		"an override of Id":                  {sink + "ceOverrides: {extensions: {Id: x}}", "must be named with lower-case letters and digits only"},
		"an override with a dash":            {sink + "ceOverrides: {extensions: {a-b: x}}", "lower-case letters and digits only"},
		"an override with a line break":      {sink + `ceOverrides: {extensions: {"a\nb": x}}`, "lower-case letters and digits only"},
		"an override of nothing":             {sink + "ceOverrides: {extensions: {'': x}}", "lower-case letters and digits only"},
		"an override of a line break":        {sink + `ceOverrides: {extensions: {team: "a\nb"}}`, "values without control characters"},
		"an override of a C1 control":        {sink + `ceOverrides: {extensions: {team: "a\u0085b"}}`, "values without control characters"},
		"negative retry":                     {sink + "delivery: {retry: -1}", "spec.delivery.retry"},
		"retry over 32 bits":                 {sink + "delivery: {retry: 2147483648}", "spec.delivery.retry"},
		"retry in halves":                    {sink + "delivery: {retry: 1.5}", "spec.delivery.retry"},
		"an unknown back-off":                {sink + "delivery: {backoffPolicy: cubic}", `supported values: "exponential", "linear"`},
		"a back-off in capitals":             {sink + "delivery: {backoffPolicy: Linear}", `supported values: "exponential", "linear"`},
		"Go style in delivery":               {sink + "delivery: {backoffDelay: 1s}", "delivery.backoffDelay must be an ISO 8601 duration such as PT5M30S"},
		"years":                              {sink + "delivery: {backoffDelay: P1Y}", "delivery.backoffDelay must be an ISO 8601 duration"},
		"a timeout of nothing":               {sink + "delivery: {timeout: PT0.0S}", "delivery.timeout must be more than 0"},
		"a timeout that is none":             {sink + "delivery: {timeout: soon}", "delivery.timeout must be an ISO 8601 duration"},
		"a negative bound":                   {sink + "delivery: {retryAfterMax: -PT1S}", "delivery.retryAfterMax must be an ISO 8601 duration"},
		"an unknown format":                  {sink + "delivery: {format: xml}", `supported values: "binary", "json"`},
		"an empty dead letter sink":          {sink + "delivery: {deadLetterSink: {}}", "delivery.deadLetterSink needs a ref"},
		"a relative dead letter sink":        {sink + "delivery: {deadLetterSink: {uri: /path}}", "delivery.deadLetterSink.uri must be an absolute"},
		"two dead letter sinks":              {sink + "delivery: {deadLetterSink: {uri: 'http://x', " + ref + "}}", "delivery.deadLetterSink.uri must be a relative path"},
		"a dead letter sink of no name":      {sink + "delivery: {deadLetterSink: {ref: {apiVersion: v1, kind: Service}}}", "spec.delivery.deadLetterSink.ref.name: Required value"},
		"a number without a unit":            {sink + "delay: '30'", "delay must be a duration such as 5m30s or PT5M30S"},
		"a number":                           {sink + "delay: 30", "spec.delay"},
		"an empty delay":                     {sink + "delay: ''", "delay must be a duration"},
		"a negative delay":                   {sink + "delay: -1s", "delay must be a duration"},
		"a delay with a line break":          {sink + `delay: "1s\n"`, "delay must be a duration"},
		"months":                             {sink + "maxInterval: P1M", "maxInterval must be a duration"},
		"an unknown policy":                  {sink + "conflictPolicy: newest", `supported values: "replace", "earliest", "latest", "keep", "fail"`},
		"an empty policy":                    {sink + "conflictPolicy: ''", "spec.conflictPolicy: Unsupported value"},
		"an unknown policy of events":        {sink + "ingest: {conflictPolicy: newest}", "spec.ingest.conflictPolicy: Unsupported value"},
		"no parallel deliveries":             {sink + "limits: {maxInFlight: 0}", "spec.limits.maxInFlight"},
		"a negative rate":                    {sink + "limits: {maxPerSecond: -1}", "spec.limits.maxPerSecond"},
		"no keys":                            {sink + "limits: {maxPending: 0}", "spec.limits.maxPending"},
		"a field that is not there":          {sink + "dealy: 5m", "unknown field spec.dealy"},
		"a field of delivery not there":      {sink + "delivery: {retries: 5}", "unknown field spec.delivery.retries"},
		"a uri that is no URL":               {"sink: {uri: 'http://x/%zz'}", "sink.uri must be an absolute"},
		"a uri with a fragment that is none": {"sink: {uri: 'http://x?a#%zz'}", "sink.uri must be an absolute"},
		"a path that is none":                {"sink: {uri: '%zz', " + ref + "}", "sink.uri must be a relative path"},
		"a path with a port":                 {"sink: {uri: ':80', " + ref + "}", "sink.uri must be a relative path"},
		"a host with a blank":                {"sink: {uri: 'http://a b/'}", "sink.uri must be an absolute"},
		"an IPv6 address that is none":       {"sink: {uri: 'http://[1:2]/'}", "sink.uri must be an absolute"},
		"another scheme":                     {"sink: {uri: 'ftp://x'}", "sink.uri must be an absolute http or https URL"},
		"a port and no host":                 {"sink: {uri: 'http://:80'}", "sink.uri must be an absolute"},
		"port 0":                             {"sink: {uri: 'http://x:0'}", "sink.uri must be an absolute"},
		"a port over the last":               {"sink: {uri: 'http://x:65536'}", "sink.uri must be an absolute"},
		"a host instead of a path":           {"sink: {uri: '//other/path', " + ref + "}", "sink.uri must be a relative path"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			api, validate := judge(t, withSpec(c.spec))
			answer := strings.Join(api, "\n")
			if !strings.Contains(answer, c.says) {
				t.Errorf("the API server says %q, want %q in it", answer, c.says)
			}
			// A rule that breaks off refuses too, but shows the user its own text.
			if strings.Contains(answer, "evaluating rule") && name != "a uri with a fragment that is none" {
				t.Errorf("a rule breaks off: %q", answer)
			}
			if validate == nil {
				t.Error("Validate accepts it")
			}
		})
	}
}

// What Validate leaves to others, because they know how to tell it: adapter/sources.
func TestCRD_RefusesUnservableObjects(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ spec, says string }{
		"over a hundred years in Go style":  {sink + "delay: 876600h0m0.001s", "delay must be at most 100 years"},
		"over a hundred years of all units": {sink + "delay: 876599h59m59s999ms1000us1000ns", "delay must be at most 100 years"},
		"over a hundred years in ISO":       {sink + "maxInterval: P5217W6DT24H", "maxInterval must be at most 100 years"},
		"far over a hundred years":          {sink + "delay: " + strings.Repeat("9", 60) + "h", "delay must be at most 100 years"},
		"a back-off of over that":           {sink + "delivery: {backoffDelay: P36525DT0.1S}", "delivery.backoffDelay must be at most 100 years"},
		"a timeout of over that":            {sink + "delivery: {timeout: PT3155760001S}", "delivery.timeout must be at most 100 years"},
		"a Retry-After of over that":        {sink + "delivery: {retryAfterMax: P99999W}", "delivery.retryAfterMax must be at most 100 years"},
		"a resync over more than that":      {sink + "watch: {resources: [{" + secrets + "}], resync: {over: P36526D}}", "watch.resync.over must be at most 100 years"},
		"an account of no name":             {sink + "watch: {serviceAccountName: '', resources: [{" + secrets + "}]}", "spec.watch.serviceAccountName"},
		"an expression without end":         {sink + "ingest: {key: '" + strings.Repeat("a", 4097) + "'}", "spec.ingest.key: Too long"},
		"keys without end":                  {sink + "limits: {maxPending: 9007199254740993}", "spec.limits.maxPending"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			api, _ := judge(t, withSpec(c.spec))
			if answer := strings.Join(api, "\n"); !strings.Contains(answer, c.says) {
				t.Errorf("the API server says %q, want %q in it", answer, c.says)
			}
		})
	}
}

// An object that a Go program cannot decode would stop every informer of the
// sources, so whatever uri the API server takes has to be readable.
func TestCRD_URIsCanBeParsedByGo(t *testing.T) {
	t.Parallel()
	for _, uri := range []string{
		":", "::", ":a", "1:a", "a:b:c", "%", "%zz", "a%", "a%2", "/%zz", "?%zz", "#%zz", "a#%", "a?b#%zz", "/a:b", "a b", "a\tb", "a\x7fb", "\n", "ü", "//", "///", "//[", "//[::1", "?", "#",
		"http:", "http:/", "http://", "http://[", "http://]", "http://[::1", "http://[::1]]", "http://[::1]:", "http://[::1]:a", "http://[fe80::1%25eth0]/", "http://[1:2]", "http://[::1#]", "http://[v1.x]",
		"http://x:y", "http://x:", "http://x:-1", "http://%41", "http://%zz", "http://a<b", "http://a\\b", "http://u:p@", "http://u#@[::1", "http://u%zz@x", "http://x#%zz", "http://x/#%", "http://x?#%zz",
		"http://x\x00", "http://ü", "http://x/\x7f", "http://x y", "http://x/a b", "http://[::1]x", "http://[::ffff:1.2.3.4]/", "http://x:080", "HTTP://X", "ht tp://x", "-http://x", "http//x",
	} {
		for _, beside := range []string{"", ", " + ref} {
			tree := fromYAML(t, withSpec("sink: {uri: ''"+beside+"}"))
			tree["spec"].(map[string]any)["sink"].(map[string]any)["uri"] = uri
			raw, err := json.Marshal(tree)
			if err != nil {
				t.Fatal(err)
			}
			if _, refused := server(t).admit(t.Context(), tree); len(refused) > 0 {
				continue
			}
			var o v1alpha1.RescheduleSource
			if err := json.Unmarshal(raw, &o); err != nil {
				t.Errorf("the API server takes uri %q%s, but: %v", uri, beside, err)
			}
		}
	}
}

// The rules add up durations in floating point, unit by unit.
func TestCRD_HundredYearsInEveryUnit(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ most, over string }{
		{"876600h", "876600h1s"},
		{"52596000m", "52596000m1s"},
		{"3155760000s", "3155760001s"},
		{"876599h59m59s999ms", "876599h59m59s1001ms"},
		{"876599h59m59s999000us", "876599h59m59s1001000us"},
		{"876599h59m59s999000µs", "876599h59m59s1001000µs"}, // U+00B5
		{"876599h59m59s999000μs", "876599h59m59s1001000μs"}, // U+03BC
		{"876599h59m59s999000000ns", "876599h59m59s1001000000ns"},
		{"P36525D", "P36525DT1S"},
		{"P5217W6D", "P5217W6DT1S"},
		{"PT876600H", "PT876600H1S"},
		{"PT52596000M", "PT52596000M1S"},
		{"PT3155760000S", "PT3155760000.1S"},
		{"P36524DT23H59M59,9S", "P36524DT23H59M60,1S"},
	} {
		for _, field := range []string{"delay: ", "delivery: {timeout: "} {
			end := strings.Repeat("}", strings.Count(field, "{"))
			if end != "" && c.most[0] != 'P' {
				continue
			}
			quoted := func(s string) string { return withSpec(sink + field + "'" + s + "'" + end) }
			if api, _ := judge(t, quoted(c.most)); len(api) > 0 {
				t.Errorf("%s%s is refused: %v", field, c.most, api)
			}
			if api, _ := judge(t, quoted(c.over)); !strings.Contains(strings.Join(api, "\n"), "must be at most 100 years") {
				t.Errorf("%s%s: %v", field, c.over, api)
			}
		}
	}
}
