package fanfare

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// The borders between packages. They keep each part small and testable without the others:
// bgp, l2 and proxy know addresses and packets, but not Kubernetes; the packages that decide
// know Kubernetes, but not GoBGP or netfilter.
//
// A moved border changes the design: give the reason in docs/decisions.

// A sealed package imports only the listed packages of this module.
var sealed = map[string][]string{
	"api/v1alpha1": nil,
	"bgp": {"internal/base/notify", "internal/base/sortedset", "internal/kernel/hwaddr",
		"internal/kernel/linkwatch"},
	"l2": {"internal/base/notify", "internal/base/sortedset", "internal/kernel/hwaddr",
		"internal/kernel/linkwatch"},
	"proxy": {"internal/base/notify", "internal/base/sortedset", "internal/kernel/linkwatch",
		"internal/kernel/nfnl"},
	"proxy/fastpath": {"internal/base/notify", "internal/base/sortedset", "internal/kernel/linkwatch",
		"internal/kernel/nfnl"},
	"proxy/conntrack": {"internal/base/notify", "internal/base/sortedset", "internal/kernel/nfnl",
		"proxy/fastpath", "proxy/state"},
	"proxy/iptables": {"internal/base/sortedset", "internal/kernel/nfnl", "proxy/renderer",
		"proxy/state"},
	"proxy/nftables": {"internal/kernel/nfnl", "proxy/renderer", "proxy/state"},
	"proxy/obstacle": {"internal/base/notify", "internal/kernel/linkwatch", "internal/kernel/nfnl",
		"proxy/iptables", "proxy/renderer", "proxy/state"},
	"proxy/renderer": {"internal/kernel/nfnl", "proxy/state"},
	"proxy/state":    {"internal/base/sortedset"},
	"speaker/rundir": {"internal/base/notify", "internal/base/sortedset", "internal/cluster",
		"internal/redirect", "internal/watch", "proxy"},
	"internal/testing/bubble":      nil,
	"internal/cluster":             {"api/v1alpha1", "bgp", "internal/base/sortedset", "l2"},
	"internal/testing/clustertest": {"api/v1alpha1"},
	"internal/testing/crdtest":     nil,
	"internal/election":            {"internal/cluster"},
	"internal/healthcheck":         nil,
	"internal/event":               nil,
	"internal/kernel/hwaddr":       nil,
	"internal/ipam":                {"internal/base/sortedset", "internal/cluster"},
	"internal/kernel/linkwatch":    {"internal/base/notify"},
	"internal/kernel/neighbour":    {"internal/base/notify", "internal/kernel/hwaddr"},
	"internal/membership": {"internal/apigroup", "internal/base/notify", "internal/cluster",
		"internal/kernel/suspend"},
	"internal/metallb":        {"api/v1alpha1", "bgp", "internal/cluster", "internal/ipam", "internal/plan", "l2"},
	"internal/monitoring":     {"internal/apigroup"},
	"internal/kernel/nfnl":    nil,
	"internal/base/notify":    nil,
	"internal/testing/nstest": nil,
	"internal/plan": {"bgp", "internal/base/sortedset", "internal/cluster", "internal/election",
		"internal/healthcheck", "internal/membership", "l2", "proxy", "proxy/obstacle"},
	"internal/testing/proxytest": {"internal/base/sortedset", "internal/kernel/nfnl", "internal/testing/nstest",
		"proxy/renderer", "proxy/state"},
	"internal/testing/plantest": {"bgp", "internal/cluster", "internal/ipam", "internal/membership",
		"internal/watch", "l2"},
	"internal/redirect": {"internal/base/sortedset", "internal/cluster", "internal/kernel/neighbour",
		"internal/membership", "internal/plan", "l2", "proxy"},
	"internal/base/retry":     nil,
	"internal/base/sortedset": nil,
	"internal/kernel/suspend": nil,
	"internal/watch":          {"api/v1alpha1", "internal/apigroup", "internal/base/notify", "internal/cluster"},

	"internal/apigroup":             nil,
	"internal/metallb/counterparts": nil,
}

// alsoInTests may be imported by the tests of a sealed package.
var alsoInTests = []string{"internal/testing/bubble", "internal/testing/clustertest", "internal/testing/crdtest",
	"internal/metallb/counterparts", "internal/testing/nstest", "internal/testing/plantest",
	"internal/testing/proxytest", "internal/watch"}

// A fence restricts libraries to some packages and files.
type fence struct {
	// libraries are import paths, with the packages below them.
	libraries []string
	// homes are directories, with their subdirectories, and single files.
	homes []string
	why   string
}

var fences = []fence{
	{
		libraries: []string{"github.com/osrg/gobgp"},
		homes:     []string{"bgp"},
		why:       "its API is wide and changes; bgp.State is ours",
	},
	{
		libraries: []string{"github.com/google/nftables", "sigs.k8s.io/knftables"},
		homes:     []string{"proxy"},
		why:       "one table, one writer",
	},
	{
		libraries: []string{"github.com/coreos/go-iptables"},
		homes:     []string{"proxy/iptables", "e2e/lab"},
		why:       "single rules are written where their tables are; the lab plays other programs, which use it",
	},
	{
		libraries: []string{"testing/synctest"},
		homes:     []string{"internal/testing/bubble"},
		why:       "by itself it does not go with the race detector",
	},
	{
		libraries: []string{"github.com/cilium/ebpf"},
		homes:     []string{"proxy/fastpath", "e2e/lab/cilium_test.go"},
		why:       "one program, one loader; a test acts as Cilium",
	},
	{
		libraries: []string{"github.com/mdlayher/arp", "github.com/mdlayher/ethernet", "github.com/mdlayher/packet"},
		homes:     []string{"l2"},
		why:       "one package answers ARP and NDP",
	},
	{
		libraries: []string{"github.com/mdlayher/ndp"},
		homes:     []string{"l2", "bgp/radv"},
		why:       "one package answers ARP and NDP; router advertisements are BGP's",
	},
	{
		libraries: []string{"github.com/mdlayher/netlink"},
		homes:     []string{"proxy/watch.go", "e2e/lab", "e2e/observer"},
		why:       "vishvananda/netlink does all but netfilter (docs/decisions/0025)",
	},
	{
		libraries: []string{"gonum.org/v1/plot"},
		homes:     []string{"e2e/bench/figure"},
		why:       "all figures look alike, and the product has none",
	},
	{
		libraries: []string{"github.com/hashicorp/memberlist"},
		homes:     []string{"internal/membership"},
		why:       "liveness is an input of Decide, not a service for other packages",
	},
	{
		libraries: []string{"k8s.io/client-go"},
		homes: []string{"internal/watch", "internal/apigroup", "internal/event", "internal/monitoring",
			"controller", "speaker/speakerstatus.go", "speaker/speakerstatus_test.go",
			"internal/membership/leaseclient.go", "internal/membership/leaseclient_test.go",
			"internal/membership/leases_test.go", "cmd", "e2e/kube", "e2e/bench"},
		why: "the API server is read into a Snapshot, and everything else works without one",
	},
	{
		libraries: []string{"k8s.io", "sigs.k8s.io/yaml", "sigs.k8s.io/controller-runtime"},
		homes: []string{"api", "internal/apigroup", "internal/cluster", "internal/testing/clustertest",
			"internal/testing/crdtest", "internal/election", "internal/event", "internal/ipam", "internal/membership",
			"internal/metallb", "internal/monitoring", "internal/plan", "internal/testing/plantest", "internal/watch",
			"controller", "speaker", "cmd", "e2e", "hack/reference", "tenancy_test.go", "tenancy_table_test.go",
			"hostile_test.go"},
		why: "bgp, l2 and proxy can be used and tested without a cluster",
	},
}

func TestImports(t *testing.T) {
	for _, s := range sources(t) {
		for _, v := range violations(s.path, s.imports) {
			t.Error(v)
		}
	}
}

// violations says which imports of the file at path cross a border.
func violations(path string, imports []string) []string {
	var bad []string
	for _, i := range imports {
		if ours, ok := strings.CutPrefix(i, module+"/"); ok {
			if why := unsealed(path, ours); why != "" {
				bad = append(bad, fmt.Sprintf("%s imports %s: %s", path, ours, why))
			}
			continue
		}
		for _, f := range fences {
			if f.keeps(i) && !f.admits(path) {
				bad = append(bad, fmt.Sprintf("%s imports %s, which belongs in %s: %s", path, i,
					strings.Join(f.homes, ", "), f.why))
			}
		}
	}
	return bad
}

// unsealed says what is wrong when the file at path imports our package pkg.
func unsealed(path, pkg string) string {
	for home, allowed := range sealed {
		if !within(path, home) || within(pkg, home) || slices.Contains(allowed, pkg) {
			continue
		}
		if strings.HasSuffix(path, "_test.go") && slices.Contains(alsoInTests, pkg) {
			continue
		}
		if len(allowed) == 0 {
			return home + " imports nothing of this module"
		}
		return fmt.Sprintf("%s imports nothing of this module but %s", home, strings.Join(allowed, ", "))
	}
	return ""
}

func (f fence) keeps(library string) bool {
	return slices.ContainsFunc(f.libraries, func(l string) bool { return within(library, l) })
}

func (f fence) admits(path string) bool {
	return slices.ContainsFunc(f.homes, func(h string) bool { return within(path, h) })
}

// within reports whether path is place or below it.
func within(path, place string) bool {
	return path == place || strings.HasPrefix(path, place+"/")
}

func TestViolations(t *testing.T) {
	const (
		ours = module + "/"
		// otherRoot does not exist: only its name begins like that of a package.
		otherRoot = "bgproute/x.go"
	)
	for _, tt := range []struct {
		path, imports string
		want          string // a part of the violation, empty when there is none
	}{
		{"bgp/gobgp.go", "github.com/osrg/gobgp/v4/pkg/server", ""},
		{"bgp/bgp_test.go", "github.com/osrg/gobgp/v4/api", ""},
		{"speaker/speaker.go", "github.com/osrg/gobgp/v4/api", "belongs in bgp"},
		{"speaker/pass_test.go", "github.com/osrg/gobgp/v4/api", "belongs in bgp"},
		{"e2e/lab/lab_test.go", "github.com/osrg/gobgp/v4/api", "belongs in bgp"},

		{"proxy/nftables/batch.go", "github.com/google/nftables/expr", ""},
		{"proxy/nftables/batch.go", "sigs.k8s.io/knftables", ""},
		{"proxy/iptables/program.go", "github.com/coreos/go-iptables/iptables", ""},
		{"proxy/obstacle/closedforward.go", "github.com/coreos/go-iptables/iptables",
			"belongs in proxy/iptables, e2e/lab"},
		{"e2e/lab/neighbour_chains_test.go", "github.com/coreos/go-iptables/iptables", ""},
		{"proxy/fastpath/datapath.go", "github.com/cilium/ebpf/link", ""},
		{"proxy/watch.go", "github.com/cilium/ebpf", "belongs in proxy/fastpath"},
		{"e2e/lab/flows.go", "github.com/google/nftables", "belongs in proxy"},
		{"cmd/fanfare/cleanup.go", "sigs.k8s.io/knftables", "belongs in proxy"},
		{"speaker/pass_test.go", "github.com/google/nftables", "belongs in proxy"},

		{"l2/arp.go", "github.com/mdlayher/arp", ""},
		{"l2/link.go", "github.com/mdlayher/packet", ""},
		{"speaker/layer2.go", "github.com/mdlayher/packet", "belongs in l2"},
		{"l2/link.go", "github.com/vishvananda/netlink", ""},
		{"bgp/nexthop.go", "github.com/mdlayher/ndp", "belongs in l2"},
		{"proxy/watch.go", "github.com/mdlayher/netlink", ""},
		{"internal/membership/gossip/gossip.go", "github.com/hashicorp/memberlist", ""},
		{"l2/l2.go", "github.com/hashicorp/memberlist", "belongs in internal/membership"},

		{"internal/watch/reflector.go", "k8s.io/client-go/tools/cache", ""},
		{"internal/cluster/builder.go", "k8s.io/client-go/tools/cache", "belongs in internal/watch"},
		{"speaker/speakerstatus.go", "k8s.io/client-go/rest", ""},
		{"e2e/kube/client.go", "k8s.io/client-go/dynamic", ""},
		{"e2e/lab/lab.go", "k8s.io/client-go/dynamic", "belongs in internal/watch"},
		{"internal/plan/decide.go", "k8s.io/client-go/rest", "belongs in internal/watch"},
		{"internal/ipam/allocate.go", "k8s.io/client-go/rest", "belongs in internal/watch"},
		{"internal/plan/decide.go", "k8s.io/api/core/v1", ""},
		{"bgp/bgp.go", "k8s.io/api/core/v1", "can be used and tested without a cluster"},
		{"proxy/proxy.go", "k8s.io/utils/ptr", "without a cluster"},
		{"l2/l2_test.go", "k8s.io/apimachinery/pkg/labels", "without a cluster"},
		{"proxy/lab_test.go", "sigs.k8s.io/yaml", "without a cluster"},

		{"bgp/bgp.go", ours + "proxy", "bgp imports nothing of this module but internal/base/notify, " +
			"internal/base/sortedset, internal/kernel/hwaddr"},
		{"proxy/proxy.go", ours + "internal/cluster", "proxy imports nothing of this module"},
		{"l2/l2.go", ours + "api/v1alpha1", "l2 imports nothing of this module"},
		{"proxy/kernel_test.go", ours + "proxy", ""},
		{"proxy/kernel_test.go", ours + "internal/testing/nstest", ""},
		{"proxy/proxy.go", ours + "internal/testing/nstest", "proxy imports nothing of this module"},
		{"proxy/preparation.go", ours + "internal/kernel/nfnl", ""},
		{"internal/kernel/nfnl/socket.go", ours + "proxy", "internal/kernel/nfnl imports nothing of this module"},
		{"proxy/iptables/read.go", ours + "proxy/state", ""},
		{"proxy/nftables/readtable.go", ours + "proxy/iptables", "proxy/nftables imports nothing of this module but"},
		{"proxy/iptables/read.go", ours + "proxy", "proxy/iptables imports nothing of this module but"},
		{"proxy/state/state.go", ours + "proxy/renderer", "proxy/state imports nothing of this module"},
		{"bgp/radv/routers.go", ours + "proxy", "bgp imports nothing of this module but"},
		{"internal/cluster/builder.go", ours + "api/v1alpha1", ""},
		{"internal/cluster/builder.go", ours + "internal/watch", "nothing of this module but api/v1alpha1, bgp"},
		{"internal/cluster/builder.go", ours + "internal/ipam", "nothing of this module but api/v1alpha1, bgp"},
		{"internal/ipam/allocate.go", ours + "speaker",
			"nothing of this module but internal/base/sortedset, internal/cluster"},
		{"api/v1alpha1/addresspool.go", ours + "internal/cluster", "api/v1alpha1 imports nothing of this module"},
		{"internal/plan/decide.go", ours + "bgp", ""},
		{"internal/plan/decide.go", ours + "speaker", "internal/plan imports nothing of this module but bgp"},
		{"internal/plan/decide_test.go", ours + "internal/testing/plantest", ""},
		{"speaker/pass.go", ours + "bgp", ""},
		{"speaker/pass.go", ours + "internal/plan", ""},
		{"speaker/rundir/state.go", ours + "speaker",
			"speaker/rundir imports nothing of this module but internal/base/notify"},
		{"cmd/fanfare/main.go", ours + "speaker", ""},
		{otherRoot, "k8s.io/client-go/rest", "belongs in"},
	} {
		if _, err := os.Stat(tt.path); err != nil && tt.path != otherRoot {
			t.Error(err)
		}
		got := strings.Join(violations(tt.path, []string{tt.imports}), "\n")
		switch {
		case tt.want == "" && got != "":
			t.Errorf("%s imports %s: %q, want nothing", tt.path, tt.imports, got)
		case !strings.Contains(got, tt.want):
			t.Errorf("%s imports %s: %q, want %q", tt.path, tt.imports, got, tt.want)
		}
	}
}

// The table in CONTRIBUTING.md has a row for each sealed package, which lists what it may import.
func TestTreeTable(t *testing.T) {
	rows := treeTable(read(t, "CONTRIBUTING.md"))
	for home, allowed := range sealed {
		row, ok := rows[home]
		if !ok {
			t.Errorf("CONTRIBUTING.md: The tree has no row for %s", home)
			continue
		}
		for _, pkg := range allowed {
			if !slices.ContainsFunc(row, func(r string) bool { return mayImport(r, pkg) }) {
				t.Errorf("CONTRIBUTING.md: the row of %s does not list %s, which it may import", home, pkg)
			}
		}
		for _, r := range row {
			below := strings.HasPrefix(r, home+"/")
			if !below && !slices.ContainsFunc(allowed, func(pkg string) bool { return mayImport(r, pkg) }) {
				t.Errorf("CONTRIBUTING.md: the row of %s lists %s, which it may not import", home, r)
			}
		}
	}
}

// treeTable returns, by package, what the third column lists in backquotes.
func treeTable(text string) map[string][]string {
	rows := map[string][]string{}
	for line := range strings.Lines(text) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) != 5 {
			continue
		}
		list := func(cell string) (names []string) {
			for i, part := range strings.Split(cell, "`") {
				if i%2 == 1 {
					names = append(names, part)
				}
			}
			return names
		}
		for _, home := range list(cells[1]) {
			rows[home] = list(cells[3])
		}
	}
	return rows
}

// mayImport reports whether an entry of the table, as proxy/state or internal/…, stands for pkg.
func mayImport(entry, pkg string) bool {
	head, all := strings.CutSuffix(entry, "/…")
	return entry == pkg || all && within(pkg, head)
}
