package proxy

import (
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/tools/txtar"

	"github.com/fanfare-lb/fanfare/internal/testing/proxytest"
	"github.com/fanfare-lb/fanfare/proxy/iptables"
	"github.com/fanfare-lb/fanfare/proxy/nftables"
	"github.com/fanfare-lb/fanfare/proxy/renderer"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// upgradeScene is what goes on while a node is upgraded.
func upgradeScene(t *testing.T) (scene, *txtar.Archive) {
	t.Helper()
	const path = "testdata/upgrade/schema-1.txtar"
	a, err := txtar.ParseFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return scene{proxytest.MustParseScene(t, path, a)}, a
}

// upgrade lets a Proxy take over under traffic what is in the kernel for the scene.
func upgrade(t *testing.T, old scene, l *lab) *Proxy {
	t.Helper()
	s := &soak{lab: l, t: t, view: proxytest.LabView()}
	s.begin(old.State)()
	conn := s.Connect(s.Client, "tcp", 0, netip.AddrPortFrom(proxytest.At("vip", 0), 81))
	stop := s.send(old.Rows)
	s.await(100)

	p := newProxy(t)
	if got := p.Adopted(); !slices.Equal(got, []netip.Addr{proxytest.At("vip", 0), proxytest.At("vip", 1)}) {
		t.Errorf("adopted %v", got)
	}
	n, start := s.requests.Load(), time.Now()
	mustSet(t, p, old.State)
	t.Logf("%d requests ended in the %v of the upgrade", s.requests.Load()-n, time.Since(start).Round(time.Millisecond))
	s.await(100)
	stop()

	checkKernel(t, old.State)
	if got := s.Ask(conn); got != "remote saw node" {
		t.Errorf("an old connection: %s", got)
	}
	if got := p.Status().Repairs; got != 0 {
		t.Errorf("%d repairs; nothing was broken", got)
	}
	return p
}

// A process finds the table of an older version under traffic, and puts its own in
// its place: no request is lost, and connections go on.
func TestUpgrade(t *testing.T) {
	proxytest.InNamespace(t, func(t *testing.T) {
		old, a := upgradeScene(t)
		l := newLab(t)
		proxytest.NFT(t, string(a.Files[slices.IndexFunc(a.Files,
			func(f txtar.File) bool { return f.Name == "table" })].Data))
		before := proxytest.Schema(t)
		upgrade(t, old, l)
		if got := proxytest.Schema(t); got == before {
			t.Errorf("the schema is still %s", got)
		}
	})
}

// The same with chains of iptables that have other names and other rules, and sets of
// another form.
func TestUpgradeOfIPTables(t *testing.T) {
	onIPTables(t, func(t *testing.T) {
		old, _ := upgradeScene(t)
		l := newLab(t)
		loadOlder(t, old.State)
		upgrade(t, old, l)
		for _, i := range iptables.Installed() {
			if save, err := exec.Command(i.Name + "-save").Output(); err != nil ||
				strings.Contains(string(save), "FAN-old") {
				t.Errorf("%s: %v; of the older version there is\n%s", i.Name, err, save)
			}
		}
	})
}

// loadOlder forwards a State by chains as an older version might have made them.
func loadOlder(t *testing.T, s State) {
	t.Helper()
	names := strings.NewReplacer("FAN-x-", "FAN-old-", "FAN-i-", "FAN-oldi-", "FANFARE-KEEP", "FANFARE-OLD",
		"FANFARE-UNSERVED", "FANFARE-OLD")
	_, v4, _ := strings.Cut(iptables.Text(s), "# IPv4\n")
	v4, v6, _ := strings.Cut(v4, "# IPv6\n")
	for f, text := range []string{v4, v6} {
		proxytest.CreateIPSets(t, state.SetID(f))
		var script strings.Builder
		for line := range strings.Lines(text) {
			if strings.HasPrefix(line, "fanfare-") {
				proxytest.IPSet(t, "add "+line)
			} else {
				script.WriteString(line)
			}
		}
		restore := exec.Command(iptables.Installed()[f].Name+"-restore", "--noflush")
		restore.Stdin = strings.NewReader(names.Replace(script.String()))
		if out, err := restore.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
}

// send sends the packets of rows again and again, until what it returns is called.
func (s *soak) send(rows []proxytest.SceneRow) (stop func()) {
	type line struct{ from, network string }
	lines := make(map[line][]netip.AddrPort)
	for _, row := range rows {
		if k := (line{row.From, row.Network}); row.Network != "sctp" {
			lines[k] = append(lines[k], row.To)
		}
	}
	var workers sync.WaitGroup
	for k, to := range lines {
		workers.Go(func() { s.run(k.from, k.network, to, 1) })
	}
	return func() {
		s.stop.Store(true)
		workers.Wait()
	}
}

// The spare table of an upgrade that did not come to its end goes with the next Set,
// and with Cleanup.
func TestUpgradeThatStopped(t *testing.T) {
	proxytest.InNamespace(t, func(t *testing.T) {
		s := proxytest.PacketState(LocalClients{})
		other := State{Node: "n1", VIPs: proxytest.VIPsOf(&VIP{Addr: proxytest.At("other", 0)})}
		leave := func() {
			t.Helper()
			proxytest.NFT(t, strings.ReplaceAll(nftables.Script(state.RenderState(other)), "inet "+renderer.TableName,
				"inet "+renderer.SpareTable))
			if !strings.Contains(listTables(t), renderer.SpareTable) {
				t.Fatal("there is no spare table")
			}
		}
		leave()
		p := newProxy(t)
		mustSet(t, p, s)
		checkKernel(t, s)
		if got := listTables(t); got != "table inet fanfare\n" {
			t.Errorf("after Set: %q", got)
		}
		leave()
		if err := Cleanup(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := listTables(t); got != "" {
			t.Errorf("after Cleanup: %q", got)
		}
	})
}

func listTables(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("nft", "list", "tables").Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}
