package nftables

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/internal/testing/proxytest"
	"github.com/fanfare-lb/fanfare/proxy/renderer"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// runVersion runs one version of nft in the test's namespace.
func runVersion(t *testing.T, program, script string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, args...)
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
	s := proxytest.PacketState(state.LocalClients{
		CIDRs: proxytest.Prefixes("10.244.1.0/24", "fd00:244:1::/64"), InterfacePrefix: "cali", Bridge: "cni0",
	})
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
	s.SNAT = state.SNAT{
		Never: proxytest.Prefixes("10.9.0.0/16", "fd00:9::/32"), Mark: state.Mark{Value: 0x10, Mask: 0xff},
	}
	return s
}

// crashes are the pairs of writer and reader of which the reader ends by a segmentation fault. The rules
// stay as they are. docs/reference/nft-versions.md has the same table.
var crashes = map[[2]string]bool{
	{"1.0.6", "0.9.8"}: true,
	{"1.1.3", "0.9.8"}: true,
	{"1.1.3", "1.0.6"}: true,
}

// deleteKubeProxy deletes proxytest.KubeProxyTable.
const deleteKubeProxy = "delete table ip kube-proxy; delete table ip6 kube-proxy"

// newerStatement is what nft 0.9.8 cannot parse in kube-proxy's table.
var newerStatement = regexp.MustCompile("dnat ip to numgen .*")

// A version of nft lists and loads the tables that the same or an older version has written, and says what
// crashed where a newer one has: Fanfare's table and kube-proxy's.
func TestVersionsOfNft(t *testing.T) {
	for _, writer := range proxytest.NFTVersions {
		t.Run(writer, func(t *testing.T) { proxytest.InNamespace(t, func(t *testing.T) { versionsWith(t, writer) }) })
	}
}

func versionsWith(t *testing.T, writer string) {
	programs := proxytest.NFTPrograms(t, "../..")
	use := func(version string) *NFT {
		return &NFT{Commands: [][]string{{programs[version]}}, Crashed: func(string) {}}
	}
	lists := func(what string) {
		t.Helper()
		for _, reader := range proxytest.NFTVersions {
			for _, form := range []string{"-a", "-j"} {
				_, err := runVersion(t, programs[reader], "", form, "list", "ruleset")
				if crashed := err != nil; crashed != crashes[[2]string{writer, reader}] {
					t.Errorf("%s of %s: %s %s list ruleset: %v", what, writer, reader, form, err)
				}
			}
		}
	}
	table := proxytest.KubeProxyTable
	if writer == "0.9.8" {
		table = newerStatement.ReplaceAllString(table, "accept")
	}
	if _, err := runVersion(t, programs[writer], table, "-f", "-"); err != nil {
		t.Fatal(err)
	}
	lists("the other program's table")
	if err := use("1.0.6").Missing(t.Context()); errors.Is(err, errCrashed) != crashes[[2]string{writer, "1.0.6"}] {
		t.Errorf("1.0.6 beside the other program's table of %s: %v", writer, err)
	}
	if _, err := runVersion(t, programs[writer], deleteKubeProxy, "-f", "-"); err != nil {
		t.Fatal(err)
	}
	k := newKernel(t)
	k.NFT = use(writer)
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

// After a crash, the newer nft loads the table, once and for all. After a restart it does again, because the
// older one crashes at Fanfare's own table too, until there is none.
func TestNewerNft(t *testing.T) {
	proxytest.InNamespace(t, func(t *testing.T) {
		programs := proxytest.NFTPrograms(t, "../..")
		newest := func(script string) {
			t.Helper()
			if _, err := runVersion(t, programs["1.1.3"], script, "-f", "-"); err != nil {
				t.Fatal(err)
			}
		}
		newest(proxytest.KubeProxyTable)
		k := newKernel(t)
		var crashes []string
		start := func() {
			crashes = nil
			k.NFT = &NFT{
				Commands: [][]string{{"/nonexistent/nft"}, {programs["1.0.6"]}, {programs["1.1.3"]}},
				Crashed:  func(replaced string) { crashes = append(crashes, replaced) },
			}
		}
		start()
		for range 2 {
			k.set(featureState())
			k.check()
			newest("delete table inet fanfare")
			k.have = nil
		}
		if len(crashes) != 1 || !strings.HasPrefix(crashes[0], "nft 1.0.6 crashed") ||
			!strings.Contains(crashes[0], "uses nft 1.1.3") {
			t.Errorf("crashes: %q", crashes)
		}
		k.set(featureState())
		newest(deleteKubeProxy)
		for _, want := range []int{1, 0} {
			start()
			if err := k.NFT.Missing(t.Context()); err != nil || len(crashes) != want {
				t.Errorf("crashes after a restart: %q, %v; want %d", crashes, err, want)
			}
			newest("table inet fanfare; delete table inet fanfare")
		}
	})
}

// Only a program's own fault is a crash.
func TestWhatIsACrash(t *testing.T) {
	for script, want := range map[string]bool{
		"kill -SEGV $$": true, "kill -ABRT $$": true, "kill -KILL $$": false, "kill -TERM $$": false, "exit 1": false,
		"true": false,
	} {
		if _, err := start(t.Context(), []string{"sh", "-c", script}, ""); errors.Is(err, errCrashed) != want {
			t.Errorf("%s: %v; want a crash: %t", script, err, want)
		}
	}
}
