package nftables

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/internal/proxytest"
	"github.com/fanfare-lb/fanfare/proxy/renderer"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// nftVersions are those of Debian 11, 12 and 13.
var nftVersions = []string{"0.9.8", "1.0.6", "1.1.3"}

// nftPrograms are what hack/nft.sh unpacks, by version.
func nftPrograms(t *testing.T) map[string]string {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(cache, "fanfare", "nft")
	if out, err := exec.CommandContext(t.Context(), "../../hack/nft.sh", dir).CombinedOutput(); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("hack/nft.sh: %v\n%s", err, out)
		}
		t.Skipf("hack/nft.sh cannot unpack the packages of other Debian releases: %v\n%s", err, out)
	}
	all := make(map[string]string)
	for _, v := range nftVersions {
		all[v] = filepath.Join(dir, v)
	}
	return all
}

// runVersion runs one version of nft in the test's namespace.
func runVersion(t *testing.T, dir, script string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "nft"), args...)
	cmd.Stdin = strings.NewReader(script)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, renderer.FirstLines(errs.String(), 3))
	}
	return out.String(), err
}

// featureState has elements in all sets, and all kinds of generated chains.
func featureState() state.State {
	s := proxytest.PacketState(state.LocalClients{CIDRs: proxytest.Prefixes("10.244.1.0/24", "fd00:244:1::/64"), InterfacePrefix: "cali", Bridge: "cni0"})
	for family := range state.SetID(2) {
		v := &state.VIP{Addr: proxytest.At("vip2", family)}
		to := state.Target{Backends: proxytest.Backends(family, "pod1", "remote"), Remote: state.Masquerade}
		for i, scheduler := range []state.Scheduler{state.Random, state.RoundRobin, state.SourceHash, state.Maglev} {
			v.Frontends = append(v.Frontends, state.Frontend{
				Protocol: state.TCP, Port: uint16(80 + i), External: to, Internal: to, Scheduler: scheduler,
				Affinity: time.Duration(i) * time.Hour, Sources: proxytest.Prefixes("10.0.0.0/8", "fd00::/16"),
			})
		}
		s.VIPs = proxytest.WithVIPs(s.VIPs, v)
	}
	s.SNAT = state.SNAT{Never: proxytest.Prefixes("10.9.0.0/16", "fd00:9::/32"), Mark: state.Mark{Value: 0x10, Mask: 0xff}}
	return s
}

// foreignTable is another program's, in the form of kube-proxy's: maps of verdicts, and sets, by address,
// protocol and port, with comments.
const foreignTable = `table ip kube-proxy {
	comment "rules for kube-proxy"
	set cluster-ips { type ipv4_addr; comment "Active ClusterIPs"; elements = { 10.96.0.1 } }
	map no-endpoint-services { type ipv4_addr . inet_proto . inet_service : verdict; comment "vmap to drop or reject packets to services with no endpoints"; elements = { 10.96.0.2 . tcp . 80 comment "default/a:p80" : goto reject-chain } }
	map service-ips { type ipv4_addr . inet_proto . inet_service : verdict; comment "ClusterIP, ExternalIP and LoadBalancer IP traffic"; elements = { 10.96.0.1 . tcp . 443 : goto service-1 } }
	set affinity-1 { type ipv4_addr; flags dynamic,timeout; timeout 3h; }
	chain reject-chain { reject; }
	chain endpoint-1 { update @affinity-1 { ip saddr }; meta l4proto tcp dnat to 10.244.1.2:443; }
	chain service-1 { ip daddr 10.96.0.1 tcp dport 443 ip saddr != 10.244.0.0/16 meta mark set meta mark or 0x4000; ip saddr @affinity-1 goto endpoint-1; numgen random mod 1 vmap { 0 : goto endpoint-1 }; }
	chain services { ip daddr . meta l4proto . th dport vmap @service-ips; ip daddr @cluster-ips drop; }
	chain filter-input { type filter hook input priority -110; policy accept; ct state new ip daddr . meta l4proto . th dport vmap @no-endpoint-services; }
	chain nat-prerouting { type nat hook prerouting priority dstnat; policy accept; jump services; }
}
`

// crashes are the pairs of writer and reader of which the reader ends by a segmentation fault. The rules
// stay as they are. docs/reference/nft-versions.md has the same table.
var crashes = map[[2]string]bool{
	{"1.0.6", "0.9.8"}: true,
	{"1.1.3", "0.9.8"}: true,
	{"1.1.3", "1.0.6"}: true,
}

// A version of nft lists and loads the tables that the same or an older version has written, and says what
// crashed where a newer one has: Fanfare's table and one in the form of kube-proxy's.
func TestVersionsOfNft(t *testing.T) {
	for _, writer := range nftVersions {
		t.Run(writer, func(t *testing.T) { proxytest.InNamespace(t, func(t *testing.T) { versionsWith(t, writer) }) })
	}
}

func versionsWith(t *testing.T, writer string) {
	programs := nftPrograms(t)
	path := os.Getenv("PATH")
	use := func(version string) {
		// The namespace's process is this test's alone.
		if err := os.Setenv("PATH", programs[version]+":"+path); err != nil {
			t.Fatal(err)
		}
	}
	lists := func(what string) {
		t.Helper()
		for _, reader := range nftVersions {
			for _, form := range []string{"-a", "-j"} {
				_, err := runVersion(t, programs[reader], "", form, "list", "ruleset")
				if crashed := err != nil; crashed != crashes[[2]string{writer, reader}] {
					t.Errorf("%s of %s: %s %s list ruleset: %v", what, writer, reader, form, err)
				}
			}
		}
	}
	if _, err := runVersion(t, programs[writer], foreignTable, "-f", "-"); err != nil {
		t.Fatal(err)
	}
	lists("the other program's table")
	use("1.0.6")
	if err := Missing(t.Context()); errors.Is(err, errCrashed) != crashes[[2]string{writer, "1.0.6"}] {
		t.Errorf("1.0.6 beside the other program's table of %s: %v", writer, err)
	}
	if _, err := runVersion(t, programs[writer], "delete table ip kube-proxy", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	use(writer)
	k := newKernel(t)
	if writer == "0.9.8" {
		if _, err := k.Converge(t.Context(), nil, featureState()); err == nil {
			t.Error("0.9.8 loads Fanfare's table")
		}
		return
	}
	k.set(featureState())
	k.check()
	lists("Fanfare's table")
}
