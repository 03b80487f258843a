// Package cluster is where the sources of an adapter in a cluster come from:
// RescheduleSources in, their status and Events out, and the settings in Knative's
// ConfigMaps.
//
// It guarantees:
//
//   - The registry follows the objects level by level: whatever watch events were
//     missed or merged, it ends up with the objects that exist. A source is its uid.
//     A deleted source is removed, and one that was recreated under the same name
//     starts empty, even if both were seen as a single update.
//   - Only the deletion of an object costs schedules. An object that is being deleted
//     counts until it is gone. An object that cannot be used (a duration above the
//     limit) keeps what was applied before, and its schedules are not purged at the
//     start. This is reported once per generation, in the log and as an Event
//     (InvalidSpec).
//   - A source that turns not ready goes on with its last known sink and dead letter
//     sink, which its status keeps.
//   - No event is sent where it can only be lost. A source is suspended (it takes
//     schedules and delivers nothing) until its sink, and its dead letter sink if it
//     has one, were resolved for the first time; under authentication-oidc also while
//     a target has an audience and the source no service account, or the object
//     behind that target does not exist.
//   - The service account of a source is computed and not read from its status.
//   - It fails closed. A cluster without the EventPolicy resource has no policies;
//     policies that cannot be read delay the start. A ConfigMap that is deleted
//     changes nothing.
//   - Memory and calls are bounded. The caches keep only the fields that are read, and
//     one copy of certificates that many sources share. An idle cluster costs its
//     watches and nothing else.
//
// How it works: three informers (RescheduleSources, EventPolicies, ConfigMaps of
// the system namespace) without resync. [Cluster.Run] reconciles names from a work
// queue against the registry, with back-off. Every 30 seconds it goes through all
// objects, each in its own second, and patches the status where it differs: the counts
// pending, inFlight, retrying and watched, the times nextDueAt and oldestDueAt, and the
// report deliveries. A change of status.watch is patched within two seconds. nextDueAt is
// rounded up to the second: at that instant the key is due. config-logging,
// config-features, config-reschedule and the trust bundles
// are followed; config-observability is read at the start.
//
// It leaves to others: resolving sinks and conditions (the controller), the calls
// to the API server and tokens (kube), who may call (access/guard), what a changed
// or removed source means (queue, dispatch), and sending (sink).
package cluster
