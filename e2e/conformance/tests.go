package conformance

import (
	"cmp"
	"regexp"
	"slices"
	"strings"

	"github.com/fanfare-lb/fanfare/e2e/kube"
)

// A Setup is a cluster that runs all tests.
type Setup struct {
	Name      string
	L2        bool           // addresses are announced over Layer 2, not by BGP
	KubeProxy kube.ProxyMode // of kube-proxy
	Proxy     string         // Fanfare's --proxy-mode
}

// Setups are the columns of the page.
var Setups = []Setup{
	{"bgp", false, kube.NFTables, "nftables"},
	{"l2", true, kube.NFTables, "nftables"},
	{"bgp-iptables", false, kube.IPTables, "iptables"},
	{"l2-iptables", true, kube.IPTables, "nftables"},
}

// Announced says how the nodes announce addresses.
func (s Setup) Announced() string {
	if s.L2 {
		return "Layer 2"
	}
	return "BGP"
}

// A Test is a test of e2e.test.
type Test struct {
	Name     string // the whole name
	About    string
	Lane     string // it takes ten minutes or more, at least when it fails, and runs beside the others
	Quick    bool   // it is part of `make test`
	Provider string // e2e.test's --provider; empty: local
}

// The beginnings of names.
const (
	loadBalancers = "[sig-network] LoadBalancers [Feature:LoadBalancer] "
	local         = "[sig-network] LoadBalancers ExternalTrafficPolicy: Local [Feature:LoadBalancer] "
	services      = "[sig-network] Services "
	deployment    = "[sig-apps] Deployment "
)

// What the tests are about.
const (
	addresses   = "addresses and ports"
	ranges      = "source ranges"
	policy      = "traffic policy Local"
	affinity    = "session affinity"
	health      = "health checks"
	terminating = "terminating endpoints"
	rolling     = "rolling updates"
)

// Tests are the rows of the page.
var Tests = []Test{
	{Name: loadBalancers + "should be able to change the type and ports of a TCP service [Slow]", About: addresses,
		Quick: true},
	{Name: loadBalancers + "should be able to change the type and ports of a UDP service [Slow]", About: addresses},
	{Name: loadBalancers + "should be able to create LoadBalancer Service without NodePort and change it [Slow]",
		About: addresses, Quick: true},
	{Name: services + "should serve endpoints on same port and different protocol for internal traffic " +
		"on Type LoadBalancer", About: addresses, Quick: true},
	{Name: services + "should complete a service status lifecycle [Conformance]", About: addresses},
	{Name: loadBalancers + "should handle load balancer cleanup finalizer for service [Slow]", About: addresses},
	{Name: loadBalancers + "should only allow access from service loadbalancer source ranges [Slow]", About: ranges},
	{Name: local + "should work for type=LoadBalancer [Slow]", About: policy},
	{Name: local + "should only target nodes with endpoints [Slow]", About: policy},
	{Name: local + "should target all nodes with endpoints [Slow]", About: policy},
	{Name: local + "should work from pods [Slow]", About: policy, Quick: true},
	{Name: loadBalancers + "should have session affinity work for LoadBalancer service with Cluster traffic " +
		"policy [LinuxOnly] [Slow]", About: affinity, Lane: "affinity"},
	{Name: loadBalancers + "should be able to switch session affinity for LoadBalancer service with Cluster traffic " +
		"policy [LinuxOnly] [Slow]", About: affinity, Lane: "affinity"},
	{Name: loadBalancers + "should have session affinity work for LoadBalancer service with Local traffic " +
		"policy [LinuxOnly] [Slow]", About: affinity, Lane: "affinity"},
	{Name: loadBalancers + "should be able to switch session affinity for LoadBalancer service with Local traffic " +
		"policy [LinuxOnly] [Slow]", About: affinity, Lane: "affinity"},
	{Name: services + "should implement NodePort and HealthCheckNodePort correctly when ExternalTrafficPolicy changes",
		About: health},
	{Name: services + "should fail health check node port if there are only terminating endpoints", About: health},
	// The misspelt word is Kubernetes'.
	{Name: services + "should fallback to terminating endpoints when there are no ready endpoints with " +
		"externallTrafficPolicy=Cluster", About: terminating},
	{Name: services + "should fallback to local terminating endpoints when there are no ready endpoints with " +
		"externalTrafficPolicy=Local", About: terminating},
	{Name: loadBalancers + "should be able to preserve UDP traffic when server pod cycles for a LoadBalancer " +
		"service on different nodes", About: rolling},
	{Name: loadBalancers + "should be able to preserve UDP traffic when server pod cycles for a LoadBalancer " +
		"service on the same nodes", About: rolling},
	{Name: loadBalancers + "should not have connectivity disruption during rolling update with " +
		"externalTrafficPolicy=Cluster [Slow]", About: rolling, Lane: "rolling-cluster"},
	{Name: loadBalancers + "should not have connectivity disruption during rolling update with " +
		"externalTrafficPolicy=Local [Slow]", About: rolling, Lane: "rolling-local"},
	// The test asks for a provider with a load balancer. Azure's is empty in e2e.test, and so asks for nothing.
	{Name: deployment + "should not disrupt a cloud load-balancer's connectivity during rollout " +
		"[Provider:aws,azure,gce]", About: rolling, Lane: "rollout", Provider: "azure"},
}

// An exclusion is a test that does not run.
type exclusion struct {
	Test   string
	Setups []string // empty: all
	Reason string
}

var exclusions = []exclusion{
	{
		Test:   loadBalancers + "should handle load balancer cleanup finalizer for service [Slow]",
		Reason: "only a cloud's controller, which must delete what it rents, sets this finalizer",
	},
	{
		Test: loadBalancers + "should have session affinity work for LoadBalancer service with Local traffic " +
			"policy [LinuxOnly] [Slow]",
		Setups: []string{"bgp", "bgp-iptables"},
		Reason: "the laboratory's router hashes by ports, so that one client reaches several nodes, and " +
			"`Local` keeps it on each",
	},
	{
		Test: loadBalancers + "should be able to switch session affinity for LoadBalancer service with Local " +
			"traffic policy [LinuxOnly] [Slow]",
		Reason: "one half wants one client on one node, the other half on several; a router or " +
			"Layer 2 does one of both",
	},
}

// LeftOut returns the reason for which a test does not run in a set-up; empty: it runs.
func LeftOut(s Setup, t Test) string {
	for _, e := range exclusions {
		if e.Test == t.Name && (len(e.Setups) == 0 || slices.Contains(e.Setups, s.Name)) {
			return e.Reason
		}
	}
	return ""
}

// A Lane is a run of e2e.test: tests that run one after the other.
type Lane struct {
	Name  string
	Tests []Test
}

// Lanes returns the lanes of a set-up, which run at the same time, with the tests whose names match.
func Lanes(s Setup, wanted *regexp.Regexp) (lanes []Lane) {
	for _, t := range Tests {
		if LeftOut(s, t) != "" || !wanted.MatchString(t.Name) {
			continue
		}
		name := cmp.Or(t.Lane, "common")
		i := slices.IndexFunc(lanes, func(l Lane) bool { return l.Name == name })
		if i < 0 {
			i, lanes = len(lanes), append(lanes, Lane{Name: name})
		}
		lanes[i].Tests = append(lanes[i].Tests, t)
	}
	return lanes
}

// Quick returns a lane for `make test`, on any cluster with two nodes and addresses by BGP.
func Quick() Lane {
	l := Lane{Name: "quick"}
	for _, t := range Tests {
		if t.Quick {
			l.Tests = append(l.Tests, t)
		}
	}
	return l
}

// Title returns the name without its labels, and with the text of a table.
func (t Test) Title() string { return strings.TrimSpace(labels.ReplaceAllString(t.Name, "")) }

var labels = regexp.MustCompile(`\[[^]]*\] ?`)

// ours matches the names of all tests that should be in Tests.
var ours = regexp.MustCompile(`\[sig-network\] LoadBalancers|Type LoadBalancer|cloud load-balancer`)

// Unknown returns the tests of e2e.test about load balancers that Tests lacks, such as those of a new Kubernetes,
// and those of Tests that e2e.test lacks. list is the output of e2e.test --list-tests.
func Unknown(list string) (added, gone []string) {
	has := map[string]bool{}
	for line := range strings.Lines(list) {
		// PATH:LINE: NAME
		_, name, ok := strings.Cut(strings.TrimSpace(line), ": ")
		if !ok {
			continue
		}
		has[name] = true
		if ours.MatchString(name) && !slices.ContainsFunc(Tests, func(t Test) bool { return t.Name == name }) {
			added = append(added, name)
		}
	}
	for _, t := range Tests {
		if !has[t.Name] {
			gone = append(gone, t.Name)
		}
	}
	return added, gone
}
