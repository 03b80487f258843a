// For sdk/versions/v0.24/go.work, which tests the SDK with this version.
module github.com/reschedule-dev/reschedule/sdk/versions/v0.24

go 1.26.0

require sigs.k8s.io/controller-runtime v0.24.1
