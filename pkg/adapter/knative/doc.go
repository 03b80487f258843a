// Package knative is the cluster as the adapter sees it: RescheduleSources in,
// their status out, and all that the Kubernetes API server and Knative's
// ConfigMaps decide for the data plane.
//
// It guarantees:
//
//   - The plane follows the objects level by level: whatever events were missed
//     or merged, it ends up with what there is. A source is known by its uid. One
//     that was deleted is removed, and one made anew under the same name starts
//     empty, even if the two were seen as a single update.
//   - Only the end of an object costs schedules. One that is being deleted counts
//     until it is gone; one that cannot be understood (a duration above the
//     limit) keeps what was applied before, and at the start is among those whose
//     schedules must not be purged. It is told once a generation, in the log and
//     as an Event (InvalidSpec).
//   - A source that turns not ready goes on with its last known sink and dead
//     letter sink, which its status keeps.
//   - No event is sent where it can only be lost. A source is suspended, that is
//     takes schedules and delivers nothing, until its sink has been resolved for
//     the first time; and its dead letter sink, if it asks for one: an event that
//     the sink turns away would have nowhere to go. And under authentication-oidc
//     a source whose target has an audience is until it has its service account,
//     and while the object behind that target is gone.
//   - Tokens are those of the source's own account, whose name is worked out and
//     not read, and never for an audience of the API server.
//   - Nobody gets in for want of knowledge: that there is no EventPolicy resource
//     means that there are no policies, that they cannot be read does not; the
//     start waits. A ConfigMap that is deleted changes nothing.
//   - Memory and calls are bounded. The caches keep what is read of an object
//     only, and certificates that many have once; each kind of call has a rate
//     limit of its own, so that status reports do not hold up tokens, and in those
//     that others can cause each namespace or peer a share; where nothing
//     happens there are the watches and nothing else.
//
// How it works: three informers (RescheduleSources, EventPolicies, ConfigMaps of
// the system namespace) without resync. [Cluster.Run] reconciles names from a
// work queue against the plane, with back-off, and goes through all objects
// every 30 seconds, each in its own second, to patch status.pending and
// status.nextDueAt where they differ. nextDueAt is rounded up to the second: at
// that instant the key is due. Tokens come from TokenRequest and are kept until
// five minutes before their end. config-logging, config-features and the trust
// bundles are followed; config-observability is read at the start.
//
// What is called, and in which kinds, is written down here (clients, codecs):
// the clientsets of Kubernetes and Knative were half of the process. An
// EventPolicy is read as it comes, and one that cannot be read admits nobody.
//
// Who may call is decided by the [Guard]: the cluster's keys tell what is forged,
// TokenReview who it is, and the source's namespace, EventPolicies and
// SubjectAccessReview what they may.
//
// It leaves to others: resolving sinks and conditions (the controller), what a
// changed or removed source means (queue, dispatch), and sending (sink).
package knative
