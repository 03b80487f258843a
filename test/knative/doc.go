// Package knative runs Knative's own conformance suites against RescheduleSource in a
// cluster: what their authors ask of a source and of an addressable, in their words.
//
// It guarantees, when it passes, that Knative Eventing's suites pass: knconf (status
// conventions, both versions of CloudEvents), oidc (who is refused with a 401), authz (who
// is refused with a 403, EventPolicies and their filters), and that what PingSource is held
// to holds for a RescheduleSource: events with Kn-Namespace and ceOverrides, EventTypes in
// front of a Broker.
//
// How it works: the suites are taken from the modules of Knative, not copied. oidc and authz
// want Knative's authentication and strict transport encryption switched on; the test does
// that, with a certificate of its own for the adapter, and takes it back. Nothing else may use
// the cluster meanwhile. test/e2e runs the suites: it builds their image, eventshub, and names it
// by a flag. TestKnative_Auth has the cluster alone there, the others run beside its tests.
//
// One feature of oidc is left out, since it waits eleven minutes for a token to expire:
// test/cluster and test/e2e have such tokens. Suites that require cert-manager (sinks with
// TLS by eventshub) are left out too; test/e2e tests encrypted deliveries.
package knative
