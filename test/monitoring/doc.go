// Package monitoring tests config/monitoring: the rules with promtool, the dashboards and
// all names of metrics against the real adapter, scraped by a real Prometheus.
//
// The programs are the installed ones, or Debian's, which hack/prometheus.sh fetches. A
// machine without them fails these tests.
package monitoring
