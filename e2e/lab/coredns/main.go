// Command coredns is CoreDNS with the few plugins that the laboratory's tests use: it builds in a
// fraction of the time of the whole.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/template"
)

func main() {
	// The order of a query's way through the plugins, as in CoreDNS's plugin.cfg.
	dnsserver.Directives = []string{"health", "errors", "template"}
	coremain.Run()
}
