package cluster

import (
	"fmt"
	"strings"
)

// spec is a RescheduleSource's, and what has to become of it.
type spec struct {
	name, yaml string
	// field is what both who refuse it name, at least in part.
	field string
	// words are in what the API server says to it, which has to tell what to do.
	words string
	// late is why only Validate refuses it, and so the controller, as a
	// condition; early why only the API server does.
	late, early string
}

const (
	toURI = "sink: {uri: 'http://x'}\n"
	toRef = "sink: {ref: {apiVersion: v1, kind: Service, name: x}}\n"

	secrets = "apiVersion: v1, kind: Secret"

	noX509 = "an expression of the API server sees the form of certificates, not what is in them"

	noCalendar = "a rule of the API server sees the form of an expression, not what it means"

	stricter = "the API server's reader of URLs takes less than Go's, which no user will miss"

	yearsLater = "Validate knows the form of a duration; its size is checked where it is read"
)

// What is within a bound or beyond it, and what a number or a duration is, is compared for thousands of values by
// test/manifests. Here are the forms of a spec, and what the API server says to a bad one.

var goodSpecs = []spec{
	{name: "the least", yaml: toURI},
	{name: "a reference", yaml: toRef},
	{name: "a reference elsewhere", yaml: "sink: {ref: {apiVersion: serving.knative.dev/v1, kind: Service, name: x, namespace: other}}"},
	{name: "a reference to one of several addresses", yaml: "sink: {ref: {apiVersion: v1, kind: Service, name: x, address: https}}"},
	{name: "a path below a reference", yaml: "sink: {ref: {apiVersion: v1, kind: Service, name: x}, uri: /path}"},
	{name: "a path without a slash below a reference", yaml: "sink: {ref: {apiVersion: v1, kind: Service, name: x}, uri: path}"},
	{name: "a query below a reference", yaml: "sink: {ref: {apiVersion: v1, kind: Service, name: x}, uri: '?a=b'}"},
	{name: "an empty uri beside a reference", yaml: "sink: {ref: {apiVersion: v1, kind: Service, name: x}, uri: ''}"},
	{name: "https with port, path and query", yaml: "sink: {uri: 'https://x.example:8443/a/b?c=d'}"},
	{name: "a user before the host", yaml: "sink: {uri: 'http://u:p@x.example:80'}"},
	{name: "an audience", yaml: "sink: {uri: 'http://x', audience: whom}"},
	{name: "overrides", yaml: toURI + `ceOverrides: {extensions: {team: platform, x1: 'ü "', empty: ''}}`},
	{name: "empty parts", yaml: toURI + "delivery: {}\ningest: {}\nlimits: {}\nceOverrides: {}"},
	{name: "no overrides", yaml: toURI + "ceOverrides: {extensions: {}}"},
	{name: "a null", yaml: toURI + "delay: null\ndelivery: null\nlimits: {maxPending: null}"},
	{name: "delivery", yaml: toURI + "delivery: {retry: 0, backoffPolicy: linear, backoffDelay: PT0S, timeout: PT0.1S, backoffMax: PT0S, retryAfterMax: PT0S, format: json, deadLetterSink: {uri: 'https://y'}}"},
	{name: "delivery otherwise", yaml: toURI + "delivery: {retry: 2147483647, backoffPolicy: exponential, format: binary, deadLetterSink: {ref: {apiVersion: v1, kind: Service, name: letters}, uri: /z}}"},
	{name: "durations of 100 years", yaml: toURI + "delay: 876600h\nmaxInterval: P36525D\ndelivery: {timeout: PT3155760000S}"},
	{name: "policy replace", yaml: toURI + "conflictPolicy: replace\ningest: {conflictPolicy: keep}"},
	{name: "expressions", yaml: toURI + `ingest: {key: "event.kind + '/' + event.name", when: "event.data.a != 1"}`},
	{name: "Go style of each unit", yaml: toURI + "delay: 1h2m3s4ms5us6ns\nmaxInterval: 7µs8μs"},
	{name: "ISO 8601 of each unit", yaml: toURI + "delay: P1W2DT3H4M5S\nmaxInterval: P2W"},
	{name: "a uri with everything", yaml: "sink: {uri: 'HTTPS://user:pw@sink.example.:8443/a%2Fb?c=d#e', audience: a}"},
	{name: "a uri of IPv4", yaml: "sink: {uri: 'http://10.0.0.1:65535'}"},
	{name: "every policy for events", yaml: toURI + "ingest: {policies: [replace, earliest, latest, keep, fail], maxDelay: PT1H, authentication: required}"},
	{name: "bytes as a quantity", yaml: toURI + "limits: {maxBytes: 10Gi}"},
	{name: "dead letters", yaml: toURI + "deadLetters: {keep: 0, maxAge: P7D}"},
	{name: "warm-up, jitter and slack", yaml: toURI + "warmUp: 3s\njitter: 0.25\nslack: PT10M"},
	{name: "a schedule", yaml: toURI + "schedule: {cron: 0 9 * * MON-FRI, timeZone: Europe/Berlin}"},
	{name: "a schedule in UTC", yaml: toURI + "delay: 0s\nschedule: {cron: '@hourly', timeZone: ''}"},
	{name: "the least to watch", yaml: watchingSpec(secrets)},
	{name: "the most to watch", yaml: watchingMany(32)},
	{name: "all namespaces", yaml: toURI + "watch: {namespaceSelector: {}, resources: [{" + secrets + "}]}"},
	{name: "a kind of two groups", yaml: watchingSpec("apiVersion: a/v1, kind: Service", "apiVersion: v1, kind: Service")},
	{name: "two kinds of a group", yaml: watchingSpec(secrets, "apiVersion: v1, kind: ConfigMap")},
	{name: "a kind with two owners", yaml: watchingSpec(secrets+", owner: {apiVersion: a/v1, kind: A}", secrets+", owner: {apiVersion: b/v1, kind: A}", secrets)},
	{name: "a kind with two changes", yaml: watchingSpec(secrets+", changes: Spec", secrets+", changes: Any")},
	{name: "a kind, also with keys", yaml: watchingSpec(secrets, secrets+", key: a", secrets+", key: b")},
	{name: "a key that is empty", yaml: watchingSpec(secrets + ", owner: {apiVersion: a/v1, kind: A}, key: ''")},
	{name: "a selector that is at hand", yaml: watchingSpec(secrets + ", selector: {matchExpressions: [{key: a, operator: Exists}, {key: b, operator: DoesNotExist, values: []}]}")},
	{name: "everything of watch", yaml: toURI + "watch: {serviceAccountName: a.b-c, namespaceSelector: {matchExpressions: [{key: a.b/c, operator: NotIn, values: [d]}]}, " +
		"resources: [{apiVersion: apps/v1, kind: Deployment, selector: {matchLabels: {a: b, c: ''}}, owner: {apiVersion: example.com/v1, kind: Website}, changes: Spec}, " +
		"{" + secrets + ", key: object.metadata.name}], resync: {onRevision: false, over: PT1H}}"},
	{name: "the least to scale", yaml: toRef + scaling("")},
	{name: "everything of scale", yaml: toRef + scaling(", replicas: 1000, cooldown: 1s, startTimeout: PT0S, serviceAccountName: a.b-c, mode: Awake")},
	{name: "a workload that is observed", yaml: toURI + scaling(", mode: Observe")},
	{name: "no sink", yaml: sinkless("")},
	{name: "no sink, as Go writes it", yaml: "sink: {}\n" + sinkless("")},
	{name: "no sink, with metrics", yaml: sinkless(", busy: {port: 65535, path: /a/b.c}")},
	{name: "no sink, with metrics in their usual place", yaml: sinkless(", busy: {port: 8080}, mode: Observe")},
	{name: "ISO 8601 in delivery", yaml: toURI + "delivery: {backoffDelay: P1DT1M, timeout: P1W, retryAfterMax: PT1.5M}"},
}

var badSpecs = []spec{
	{name: "no sink", yaml: "suspend: false", field: "spec.sink", words: "Required"},
	{name: "an empty sink", yaml: "sink: {}", field: "spec.sink", words: "sink needs a ref (an object with an address"},
	{name: "a sink of certificates only", yaml: "sink: {audience: whom}", field: "spec.sink", words: "uri"},
	{name: "an empty uri", yaml: "sink: {uri: ''}", field: "spec.sink", words: "uri"},
	{name: "a relative uri alone", yaml: "sink: {uri: /path}", field: "spec.sink", words: "sink.uri must be an absolute http or https URL with a host"},
	{name: "a uri without a host", yaml: "sink: {uri: 'http:///path'}", field: "spec.sink", words: "absolute"},
	{name: "two ports", yaml: "sink: {uri: 'http://x:80:80'}", field: "spec.sink"}, // some versions of Go take it, others not
	{name: "another scheme", yaml: "sink: {uri: 'ftp://x'}", field: "spec.sink", words: "http"},
	{name: "a scheme that begins like one", yaml: "sink: {uri: 'httpss://x'}", field: "spec.sink", words: "http"},
	{name: "a fragment", yaml: "sink: {uri: 'http://x#a'}", field: "spec.sink", early: stricter},
	{name: "an address with a zone", yaml: "sink: {uri: 'http://[fe80::1%25eth0]'}", field: "spec.sink", early: stricter},
	{name: "an address of version 4 in one of version 6", yaml: "sink: {uri: 'http://[::ffff:1.2.3.4]'}", field: "spec.sink", early: stricter},
	{name: "a port with a zero in front", yaml: "sink: {uri: 'http://x:080'}", field: "spec.sink", early: stricter},
	{name: "an absolute uri beside a reference", yaml: "sink: {uri: 'http://x', ref: {apiVersion: v1, kind: Service, name: x}}", field: "spec.sink", words: "sink.uri must be a relative path beside a ref; leave out one of the two"},
	{name: "a host beside a reference", yaml: "sink: {uri: //x/path, ref: {apiVersion: v1, kind: Service, name: x}}", field: "spec.sink", words: "relative"},
	{name: "a uri that is none beside a reference", yaml: "sink: {uri: '%zz', ref: {apiVersion: v1, kind: Service, name: x}}", field: "spec.sink"},
	{name: "a reference without a name", yaml: "sink: {ref: {apiVersion: v1, kind: Service}}", field: "spec.sink.ref", words: "name"},
	{name: "a reference without a kind", yaml: "sink: {ref: {apiVersion: v1, name: x}}", field: "spec.sink.ref", words: "kind"},
	{name: "a reference without a version", yaml: "sink: {ref: {kind: Service, name: x}}", field: "spec.sink.ref", words: "apiVersion"},
	{name: "a reference by group", yaml: "sink: {ref: {group: serving.knative.dev, kind: Service, name: x}}", field: "spec.sink.ref.group"},
	{name: "certificates that are none", yaml: "sink: {uri: 'http://x', CACerts: nonsense}", field: "spec.sink.CACerts", words: "sink.CACerts must be one or more whole certificates in PEM format"},
	{name: "empty certificates", yaml: "sink: {ref: {apiVersion: v1, kind: Service, name: x}, CACerts: ''}", field: "spec.sink.CACerts", words: "PEM"},
	{name: "a key for a certificate", yaml: "sink: {uri: 'http://x', CACerts: \"-----BEGIN PRIVATE KEY-----\\nMIIA\\n-----END PRIVATE KEY-----\\n\"}", field: "spec.sink.CACerts", words: "PEM"},
	{name: "a certificate of nothing", yaml: "sink: {uri: 'http://x', CACerts: \"-----BEGIN CERTIFICATE-----\\nMIIA\\n-----END CERTIFICATE-----\\n\"}", field: "spec.sink.CACerts", late: noX509},
	{name: "override of id", yaml: toURI + "ceOverrides: {extensions: {id: x}}", field: "spec.ceOverrides.extensions", words: "must not name an attribute of CloudEvents itself: id, source, type, specversion"},
	{name: "override among good ones", yaml: toURI + "ceOverrides: {extensions: {a: x, id: x, z: x}}", field: "spec.ceOverrides.extensions"},
	{name: "a name in capitals", yaml: toURI + "ceOverrides: {extensions: {Team: x}}", field: "spec.ceOverrides.extensions", words: "must be named with lower-case letters and digits only"},
	{name: "a name with a dash", yaml: toURI + "ceOverrides: {extensions: {a-b: x}}", field: "spec.ceOverrides.extensions"},
	{name: "a name with an umlaut", yaml: toURI + "ceOverrides: {extensions: {ä: x}}", field: "spec.ceOverrides.extensions"},
	{name: "a name with a line break", yaml: toURI + `ceOverrides: {extensions: {"a\n": x}}`, field: "spec.ceOverrides.extensions"},
	{name: "an empty name", yaml: toURI + "ceOverrides: {extensions: {'': x}}", field: "spec.ceOverrides.extensions"},
	{name: "a control character", yaml: toURI + `ceOverrides: {extensions: {team: "a\nb"}}`, field: "spec.ceOverrides.extensions", words: "values without control characters"},
	{name: "a control character of Latin 1", yaml: toURI + `ceOverrides: {extensions: {team: "a\u0085b"}}`, field: "spec.ceOverrides.extensions"},
	{name: "an override that is a number", yaml: toURI + "ceOverrides: {extensions: {team: 1}}", field: "spec.ceOverrides.extensions"},
	{name: "unknown back-off", yaml: toURI + "delivery: {backoffPolicy: cubic}", field: "spec.delivery.backoffPolicy", words: `supported values: "exponential", "linear"`},
	{name: "Go style in delivery", yaml: toURI + "delivery: {backoffDelay: 1s}", field: "spec.delivery.backoffDelay", words: "delivery.backoffDelay must be an ISO 8601 duration such as PT5M30S"},
	{name: "a timeout of nothing", yaml: toURI + "delivery: {timeout: PT0S}", field: "spec.delivery.timeout", words: "delivery.timeout must be more than 0"},
	{name: "a timeout that is none", yaml: toURI + "delivery: {timeout: soon}", field: "spec.delivery.timeout", words: "delivery.timeout must be an ISO 8601 duration"},
	{name: "a negative bound", yaml: toURI + "delivery: {retryAfterMax: -PT1S}", field: "spec.delivery.retryAfterMax", words: "delivery.retryAfterMax must be an ISO 8601 duration"},
	{name: "unknown format", yaml: toURI + "delivery: {format: xml}", field: "spec.delivery.format", words: `supported values: "binary", "json"`},
	{name: "an empty dead letter sink", yaml: toURI + "delivery: {deadLetterSink: {}}", field: "spec.delivery.deadLetterSink", words: "delivery.deadLetterSink needs a ref"},
	{name: "a relative dead letter sink", yaml: toURI + "delivery: {deadLetterSink: {uri: /path}}", field: "spec.delivery.deadLetterSink", words: "delivery.deadLetterSink.uri must be an absolute"},
	{name: "a dead letter sink without a name", yaml: toURI + "delivery: {deadLetterSink: {ref: {apiVersion: v1, kind: Service}}}", field: "spec.delivery.deadLetterSink.ref"},
	{name: "an absolute uri beside the reference of a dead letter sink", yaml: toURI + "delivery: {deadLetterSink: {uri: 'http://x', ref: {apiVersion: v1, kind: Service, name: x}}}", field: "spec.delivery.deadLetterSink", words: "delivery.deadLetterSink.uri must be a relative path"},
	{name: "certificates of a dead letter sink that are none", yaml: toURI + "delivery: {deadLetterSink: {uri: 'http://x', CACerts: nonsense}}", field: "spec.delivery.deadLetterSink.CACerts", words: "PEM"},
	{name: "a number without a unit", yaml: toURI + "delay: '30'", field: "spec.delay", words: "delay must be a duration such as 5m30s or PT5M30S"},
	{name: "months of an interval", yaml: toURI + "maxInterval: P1M", field: "spec.maxInterval", words: "maxInterval must be a duration"},
	{name: "unknown policy", yaml: toURI + "conflictPolicy: newest", field: "spec.conflictPolicy", words: `supported values: "replace", "earliest", "latest", "keep", "fail"`},
	{name: "a delay of events that is none", yaml: toURI + "ingest: {maxDelay: soon}", words: "ingest.maxDelay must be a duration"},
	{name: "no bytes", yaml: toURI + "limits: {maxBytes: 0}", words: "limits.maxBytes must be a quantity of bytes over 0"},
	{name: "negative bytes", yaml: toURI + "limits: {maxBytes: -1Gi}", words: "limits.maxBytes must be a quantity of bytes over 0"},
	{name: "dead letters without an age", yaml: toURI + "deadLetters: {maxAge: soon}", words: "deadLetters.maxAge must be a duration"},
	{name: "a slack that is none", yaml: toURI + "slack: -1s", words: "slack must be a duration"},
	{name: "a schedule and a delay", yaml: toURI + "delay: 5m\nschedule: {cron: '@hourly'}", words: "schedule stands in place of delay and maxInterval"},
	{name: "a schedule and an interval", yaml: toURI + "maxInterval: 0s\nschedule: {cron: '@hourly'}", words: "schedule stands in place of delay and maxInterval"},
	{name: "a schedule of nothing", yaml: toURI + "schedule: {timeZone: UTC}", words: "spec.schedule.cron: Required value"},
	{name: "a schedule that is empty", yaml: toURI + "schedule: {cron: ''}", words: "spec.schedule.cron"},
	{name: "an interval for a schedule", yaml: toURI + "schedule: {cron: '@every 5m'}", words: "schedule.cron must be five fields of cron"},
	{name: "a zone in the schedule", yaml: toURI + "schedule: {cron: 'TZ=UTC 0 9 * * *'}", words: "use timeZone"},
	{name: "a schedule that never comes", yaml: toURI + "schedule: {cron: 0 0 30 2 *}", field: "spec.schedule.cron", late: noCalendar},
	{name: "the zone of a machine", yaml: toURI + "schedule: {cron: '@daily', timeZone: Local}", words: "schedule.timeZone must be the name of an IANA time zone"},
	{name: "an unknown zone", yaml: toURI + "schedule: {cron: '@daily', timeZone: Europe/Bonn}", field: "spec.schedule.timeZone", words: "unknown time zone"},
	{name: "a warm-up that is none", yaml: toURI + "warmUp: '3'", words: "warmUp must be a duration"},
	{name: "watching nothing", yaml: toURI + "watch: {}", words: "spec.watch.resources: Required value"},
	{name: "watching an empty list", yaml: toURI + "watch: {resources: []}", words: "spec.watch.resources"},
	{name: "watching too much", yaml: watchingMany(33), words: "spec.watch.resources: Too many"},
	{name: "an account that is none", yaml: toURI + "watch: {serviceAccountName: A, resources: [{" + secrets + "}]}", words: "watch.serviceAccountName must be the name of a ServiceAccount"},
	{name: "a kind without a version", yaml: watchingSpec("kind: Secret"), words: "spec.watch.resources[0].apiVersion: Required value"},
	{name: "a version without a kind", yaml: watchingSpec("apiVersion: v1"), words: "spec.watch.resources[0].kind: Required value"},
	{name: "an empty kind", yaml: watchingSpec("apiVersion: v1, kind: ''"), words: "watch.resources[].kind must be a kind such as Deployment"},
	{name: "a plural with a group", yaml: watchingSpec("apiVersion: v1, kind: deployments.apps"), words: "watch.resources[].kind must be a kind"},
	{name: "a version with two slashes", yaml: watchingSpec("apiVersion: a/b/c, kind: A"), words: "watch.resources[].apiVersion must be a group and version such as apps/v1, or v1"},
	{name: "a group in capitals", yaml: watchingSpec("apiVersion: Apps/v1, kind: A"), words: "watch.resources[].apiVersion must be"},
	{name: "an owner of no kind", yaml: watchingSpec(secrets + ", owner: {apiVersion: v1}"), words: "spec.watch.resources[0].owner.kind: Required value"},
	{name: "an owner of a bad kind", yaml: watchingSpec(secrets + ", owner: {apiVersion: v1, kind: a/b}"), words: "watch.resources[].owner.kind must be"},
	{name: "an owner of a bad group", yaml: watchingSpec(secrets + ", owner: {apiVersion: a/, kind: A}"), words: "watch.resources[].owner.apiVersion must be"},
	{name: "an owner and a key", yaml: watchingSpec(secrets + ", owner: {apiVersion: v1, kind: A}, key: x"), words: "watch.resources[].key must not be beside owner; leave out one of the two"},
	{name: "unknown changes", yaml: watchingSpec(secrets + ", changes: Status"), words: `supported values: "Spec", "Metadata", "Any"`},
	{name: "a kind twice", yaml: watchingSpec(secrets, secrets), words: "watch.resources must not have two entries of the same kind, owner, key and changes"},
	{name: "a kind twice, with the default", yaml: watchingSpec(secrets, secrets+", changes: Metadata"), words: "watch.resources must not have two entries"},
	{name: "a kind twice, by two selectors", yaml: watchingSpec(secrets+", selector: {matchLabels: {a: b}}", secrets), words: "watch.resources must not have two entries"},
	{name: "a kind twice, by two versions", yaml: watchingSpec("apiVersion: a/v1, kind: A", "apiVersion: a/v2, kind: A"), words: "watch.resources must not have two entries"},
	{name: "a key twice, with its default", yaml: watchingSpec(secrets+", key: x, changes: Any", secrets+", key: x"), words: "watch.resources must not have two entries"},
	{name: "an owner twice, by two versions", yaml: watchingSpec(secrets+", owner: {apiVersion: a/v1, kind: A}", secrets+", owner: {apiVersion: a/v2, kind: A}"), words: "watch.resources must not have two entries"},
	{name: "a label that is none", yaml: watchingSpec(secrets + ", selector: {matchLabels: {'a b': c}}"), words: "watch.resources[].selector.matchLabels must be named as labels are"},
	{name: "a label's value that is none", yaml: watchingSpec(secrets + ", selector: {matchLabels: {a: 'b c'}}"), words: "spec.watch.resources[0].selector.matchLabels.a"},
	{name: "a requirement of no label", yaml: watchingSpec(secrets + ", selector: {matchExpressions: [{key: '', operator: Exists}]}"), words: "spec.watch.resources[0].selector.matchExpressions[0].key"},
	{name: "an unknown operator", yaml: watchingSpec(secrets + ", selector: {matchExpressions: [{key: a, operator: Is}]}"), words: `"In", "NotIn"`},
	{name: "a requirement In nothing", yaml: watchingSpec(secrets + ", selector: {matchExpressions: [{key: a, operator: In}]}"), words: "In and NotIn need values"},
	{name: "a requirement Exists of values", yaml: watchingSpec(secrets + ", selector: {matchExpressions: [{key: a, operator: Exists, values: [b]}]}"), words: "Exists and DoesNotExist must have none"},
	{name: "namespaces by a bad label", yaml: toURI + "watch: {namespaceSelector: {matchLabels: {-: c}}, resources: [{" + secrets + "}]}", words: "watch.namespaceSelector.matchLabels must be named as labels are"},
	{name: "scaling nothing", yaml: toURI + "scale: {}", words: "spec.scale.targetRef: Required value"},
	{name: "scaling a Knative Service", yaml: "sink: {ref: {apiVersion: serving.knative.dev/v1, kind: Service, name: x}}\n" + scaling(""), field: "spec.scale", words: "name a Service in front of the workload as the sink"},
	{name: "scaling what has no name", yaml: toURI + "scale: {targetRef: {apiVersion: apps/v1, kind: Deployment}}", words: "spec.scale.targetRef.name: Required value"},
	{name: "scaling a plural", yaml: toURI + "scale: {targetRef: {apiVersion: apps/v1, kind: deployments.apps, name: x}}", words: "scale.targetRef.kind must be a kind such as Deployment"},
	{name: "scaling a version of no group", yaml: toURI + "scale: {targetRef: {apiVersion: apps/, kind: Deployment, name: x}}", words: "scale.targetRef.apiVersion must be a group and version"},
	{name: "scaling a name in capitals", yaml: toURI + "scale: {targetRef: {apiVersion: apps/v1, kind: Deployment, name: X}}", words: "scale.targetRef.name must be the name of an object"},
	{name: "no replicas", yaml: toURI + scaling(", replicas: 0"), words: "spec.scale.replicas"},
	{name: "too many replicas", yaml: toURI + scaling(", replicas: 1001"), words: "spec.scale.replicas"},
	{name: "a cooldown of less than a second", yaml: toURI + scaling(", cooldown: 999ms"), field: "spec.scale.cooldown", words: "scale.cooldown must be at least 1s"},
	{name: "a cooldown that is none", yaml: toURI + scaling(", cooldown: soon"), words: "scale.cooldown must be a duration"},
	{name: "a start that is no duration", yaml: toURI + scaling(", startTimeout: -1s"), words: "scale.startTimeout must be a duration"},
	{name: "a scaler that is none", yaml: toURI + scaling(", serviceAccountName: A"), words: "scale.serviceAccountName must be the name of a ServiceAccount"},
	{name: "no sink, and nothing to watch", yaml: scaling(""), field: "spec.sink", words: "sink is required, unless scale and watch are set"},
	{name: "no sink, and nothing to scale", yaml: "watch: {resources: [{" + secrets + "}]}", field: "spec.sink", words: "sink is required, unless scale and watch are set"},
	{name: "metrics with a sink", yaml: toURI + sinkless(", busy: {port: 8080}"), field: "spec.scale", words: "scale.busy is only for a source without a sink"},
	{name: "metrics of no port", yaml: sinkless(", busy: {path: /metrics}"), words: "spec.scale.busy.port: Required value"},
	{name: "metrics of port 0", yaml: sinkless(", busy: {port: 0}"), words: "spec.scale.busy.port"},
	{name: "metrics of a path that is none", yaml: sinkless(", busy: {port: 1, path: 'metrics?x'}"), words: "spec.scale.busy.path"},
	{name: "an unknown mode", yaml: toURI + scaling(", mode: Off"), words: `supported values: "Auto", "Awake", "Observe"`},
	{name: "a resync over no time", yaml: toURI + "watch: {resources: [{" + secrets + "}], resync: {over: soon}}", words: "watch.resync.over must be a duration"},
	{name: "an override of the key", yaml: toURI + "ceOverrides: {extensions: {reschedulekey: x}}", words: "must not begin with reschedule"},
	{name: "an override of what we may add", yaml: toURI + "ceOverrides: {extensions: {reschedulefoo: x}}", words: "must not begin with reschedule"},
	{name: "an override of Id", yaml: toURI + "ceOverrides: {extensions: {Id: x}}", words: "must be named with lower-case letters and digits only"},
	{name: "a uri that is no URL", yaml: "sink: {uri: 'http://x/%zz'}", words: "sink.uri must be an absolute"},
	{name: "a uri with a fragment that is none", yaml: "sink: {uri: 'http://x?a#%zz'}", words: "sink.uri must be an absolute"},
	{name: "a path with a port", yaml: "sink: {uri: ':80', ref: {apiVersion: v1, kind: Service, name: x}}", words: "sink.uri must be a relative path"},
	{name: "an IPv6 address that is none", yaml: "sink: {uri: 'http://[1:2]/'}", words: "sink.uri must be an absolute"},
	{name: "a field that is not there", yaml: toURI + "dealy: 5m", field: "spec.dealy"},
	{name: "a field of delivery that is not there", yaml: toURI + "delivery: {retries: 5}", field: "spec.delivery.retries"},
	{name: "a spec that is none", yaml: "[]", field: "spec"},
}

// long is n letters.
func long(n int) string { return strings.Repeat("a", n) }

// bigSpecs are larger than any user needs.
var bigSpecs = []spec{
	{name: "a long uri", yaml: "sink: {uri: 'http://x/" + long(2048) + "'}", field: "spec.sink.uri"},
	{name: "a long name", yaml: "sink: {ref: {apiVersion: v1, kind: Service, name: " + long(254) + "}}", field: "spec.sink.ref.name"},
	{name: "a long override", yaml: toURI + "ceOverrides: {extensions: {a: " + long(2049) + "}}", field: "spec.ceOverrides.extensions"},
	{name: "a delay of more than 100 years", yaml: toURI + "delay: 876601h", field: "spec.delay", words: "100 years", early: yearsLater},
	{name: "an interval of more than 100 years", yaml: toURI + "maxInterval: P5300W", field: "spec.maxInterval", words: "100 years", early: yearsLater},
	{name: "a timeout of more than 100 years", yaml: toURI + "delivery: {timeout: P99999D}", field: "spec.delivery.timeout", words: "100 years", early: yearsLater},
	{name: "over a hundred years of all units", yaml: toURI + "delay: 876599h59m59s999ms1000us1000ns", words: "delay must be at most 100 years", early: yearsLater},
	{name: "over a hundred years in ISO", yaml: toURI + "maxInterval: P5217W6DT24H", words: "maxInterval must be at most 100 years", early: yearsLater},
	{name: "far over a hundred years", yaml: toURI + "delay: " + strings.Repeat("9", 60) + "h", words: "delay must be at most 100 years", early: yearsLater},
	{name: "a back-off of over that", yaml: toURI + "delivery: {backoffDelay: P36525DT0.1S}", words: "delivery.backoffDelay must be at most 100 years", early: yearsLater},
	{name: "a Retry-After of over that", yaml: toURI + "delivery: {retryAfterMax: P99999W}", words: "delivery.retryAfterMax must be at most 100 years", early: yearsLater},
	{name: "a resync over more than that", yaml: toURI + "watch: {resources: [{" + secrets + "}], resync: {over: P36526D}}", words: "watch.resync.over must be at most 100 years", early: yearsLater},
	{name: "an account of no name", yaml: toURI + "watch: {serviceAccountName: '', resources: [{" + secrets + "}]}", words: "spec.watch.serviceAccountName", early: "in Go it is as if it were absent"},
}

// certified is a sink with these certificates.
func certified(certificates string) string {
	return fmt.Sprintf("sink: {uri: 'http://x', CACerts: %q}", certificates)
}

// goodCertificates and badCertificates are made of a whole one.
func goodCertificates(one string) []spec {
	return []spec{
		{name: "a certificate", yaml: certified(one)},
		{name: "two with text between", yaml: certified(one + "# the next\n" + one)},
		{name: "a whole bundle", yaml: certified(strings.Repeat("# CA\n"+one, 150))},
	}
}

func badCertificates(one string) []spec {
	damaged, says := strings.Replace(one, "\n", "\n!", 1), "sink.CACerts must be"
	return []spec{
		{name: "a damaged certificate first", yaml: certified(damaged + one), words: says},
		{name: "a damaged certificate last", yaml: certified(one + damaged), words: says},
		{name: "half a certificate", yaml: certified(one[:len(one)/2]), words: says},
	}
}

// scaling is a spec.scale with more fields.
func scaling(more string) string {
	return "scale: {targetRef: {apiVersion: apps/v1, kind: Deployment, name: x}" + more + "}"
}

// watchingSpec is a spec that watches these resources.
func watchingSpec(resources ...string) string {
	return toURI + "watch: {resources: [{" + strings.Join(resources, "}, {") + "}]}"
}

// watchingMany is a spec that watches so many resources.
func watchingMany(n int) string {
	resources := make([]string, n)
	for i := range resources {
		resources[i] = fmt.Sprintf("apiVersion: group%d.example.com/v1, kind: K%d, key: '%s'", i, i, long(4096))
	}
	return watchingSpec(resources...)
}

// sinkless is a spec without a sink, with more fields of spec.scale.
func sinkless(more string) string {
	return scaling(more) + "\nwatch: {resources: [{" + secrets + "}]}\n"
}
