// Coredns is the DNS server of hack/cluster: CoreDNS, with the six of its plugins that
// the names of a cluster need. The others would bring the clients of many clouds.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/log"
	_ "github.com/coredns/coredns/plugin/ready"
)

func init() {
	dnsserver.Directives = []string{"health", "ready", "errors", "log", "cache", "kubernetes"}
}

func main() { coremain.Run() }
