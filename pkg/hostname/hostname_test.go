package hostname

import "testing"

// A name means the same in all its spellings. The name with a dot at its end was none of the cluster, and its events
// and tokens went to a proxy.
func TestNames_MeanTheSameInAllSpellings(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		address, name     string
		loopback, cluster bool
	}{
		{"localhost", "localhost", true, false},
		{"LocalHost.:8080", "localhost", true, false},
		{"localhost..", "localhost.", false, false},
		{"localhost.example.com", "localhost.example.com", false, false},
		{"127.0.0.1:80", "127.0.0.1", true, false},
		{"127.9.9.9", "127.9.9.9", true, false},
		{"[::1]:80", "::1", true, false},
		{"[::1]", "::1", true, false},
		{"::1", "::1", true, false},
		{"[::ffff:127.0.0.1]:80", "::ffff:127.0.0.1", true, false},
		{"10.0.0.1", "10.0.0.1", false, false},
		{"127.0.0.1.example.com", "127.0.0.1.example.com", false, false},
		{"", "", false, false},
		{":8080", "", false, false},
		{"op.ops.svc", "op.ops.svc", false, true},
		{"op.ops.svc.", "op.ops.svc", false, true},
		{"op.ops.svc.cluster.local.", "op.ops.svc.cluster.local", false, true},
		{"OP.Ops.SVC.Cluster.Local.:8443", "op.ops.svc.cluster.local", false, true},
		{"op.ops.svc。cluster。local。", "op.ops.svc.cluster.local", false, true},
		{"svc", "svc", false, false},
		{"cluster.local.example.com.", "cluster.local.example.com", false, false},
		{"bücher.example.", "xn--bcher-kva.example", false, false},
	} {
		name := Of(tt.address)
		if Plain(name) != tt.name || IsLoopback(name) != tt.loopback || IsOfCluster(name) != tt.cluster {
			t.Errorf("%q: %q, loopback %v, of the cluster %v", tt.address, Plain(name), IsLoopback(name), IsOfCluster(name))
		}
	}
}
