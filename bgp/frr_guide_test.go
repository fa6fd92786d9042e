package bgp

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

var frrBlock = regexp.MustCompile("(?ms)^```frr\n(.*?)^```")

// guide is the configuration for FRR in a section of a document.
func guide(t *testing.T, name, section string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../docs", name))
	must(t, err)
	_, rest, ok := strings.Cut(string(text), "\n## "+section+"\n")
	if !ok {
		t.Fatalf("%s has no section %q", name, section)
	}
	body, _, _ := strings.Cut(rest, "\n## ")
	m := frrBlock.FindStringSubmatch(body)
	if m == nil {
		t.Fatalf("%s: section %q shows nothing for FRR", name, section)
	}
	return m[1]
}

// guideNode is a node as the docs about BGP have it, by IPv6.
func guideNode(t *testing.T, r *frr) Session {
	t.Helper()
	r.uplink()
	nstest.Node(t).Addr("uplink", "2001:db8::11/64")
	r.ns.Addr("eth0", "2001:db8::1/64")
	return Session{Name: "tor1", PeerAddress: netip.MustParseAddr("2001:db8::1"), PeerASN: 64512, LocalASN: 64513,
		SourceAddress: netip.MustParseAddr("2001:db8::11"), ConnectTime: time.Second}
}

// The FRR examples of the docs work unchanged: IPv4 over IPv6, and route maps that match
// communities.
func TestFRRGuide(t *testing.T) {
	for _, c := range []struct {
		page, section string
		told          Attributes
		leaving       bool
		want          string // of the router, about the announced route
	}{
		{"tasks/drain-a-node.md", "On the router", Attributes{}, true,
			"as 64513 preference 0 community graceful-shutdown"},
		{"reference/bgp-advertisement.md", "Attributes", Attributes{Communities: CommunitiesOf(64500<<16 | 100)}, false,
			"as 64513 preference 200 community 64500:100"},
	} {
		t.Run(c.section, func(t *testing.T) {
			inNamespace(t, func(t *testing.T) {
				conf := guide(t, "reference/bgp.md", "Next hops") +
					" bgp router-id 10.255.0.1\n neighbor 2001:db8::11 timers connect 1\n" +
					" address-family ipv4 unicast\n  neighbor 2001:db8::11 route-map nodes in\n " +
					"exit-address-family\nexit\n" + guide(t, c.page, c.section)
				r := newFRR(t, "router", conf)
				session := guideNode(t, r)
				r.run()
				s := newServer(t, Options{})
				want := state([]Session{session}, append(told(ForAll(c.told), routes("192.0.2.1/32")...),
					routes("192.0.2.2/32")...))
				want.Shutdown = c.leaving
				_, err := s.Set(t.Context(), want)
				must(t, err)
				eventually(t, "routes", func() bool {
					return r.kernel() == "192.0.2.1/32 via inet6 2001:db8::11\n192.0.2.2/32 via inet6 2001:db8::11"
				})
				r.await("192.0.2.1/32", "2001:db8::11", c.want)
				if !c.leaving {
					r.await("192.0.2.2/32", "2001:db8::11", "as 64513")
				}
			})
		})
	}
}

// The router of the BGP tutorial takes the pool's addresses from nodes that it need not
// know one by one, and no others.
func TestFRRInstall(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		r := newFRR(t, "router", guide(t, "tutorials/bgp.md", "2. The router"))
		node := nstest.Node(t)
		nstest.Link(t, node, "uplink", r.ns, "eth0")
		node.Addr("uplink", "198.51.100.11/24")
		r.ns.Addr("eth0", "198.51.100.1/24")
		r.run()
		s := newServer(t, Options{})
		session := Session{
			Name: "tor1", PeerAddress: netip.MustParseAddr("198.51.100.1"), PeerASN: 64512, LocalASN: 64513,
			GracefulRestart: true,
		}
		_, err := s.Set(t.Context(), state([]Session{session}, routes("192.0.2.5/32", "198.18.0.1/32")))
		must(t, err)
		eventually(t, "the pool's route", func() bool { return r.kernel() == "192.0.2.5/32 via 198.51.100.11" })
		if st := s.sessionStatus("tor1"); st.IgnoredUpdates > 2 {
			t.Errorf("the router sends %d UPDATEs", st.IgnoredUpdates)
		}
	})
}

// Everything that documents show for FRR is FRR's language.
func TestFRRAcceptsDocumentedConfiguration(t *testing.T) {
	if _, err := exec.LookPath("vtysh"); err != nil {
		nstest.Missing(t, err.Error())
	}
	files, err := filepath.Glob("../docs/*.md")
	must(t, err)
	below, err := filepath.Glob("../docs/*/*.md")
	must(t, err)
	n := 0
	for _, name := range append(append(files, below...), "../README.md") {
		text, err := os.ReadFile(name)
		must(t, err)
		for i, m := range frrBlock.FindAllStringSubmatch(string(text), -1) {
			n++
			file := filepath.Join(t.TempDir(), fmt.Sprintf("%d.conf", i))
			must(t, os.WriteFile(file, []byte(m[1]), 0o644))
			if out, err := exec.Command("vtysh", "--dryrun", "--inputfile", file).CombinedOutput(); err != nil ||
				strings.Contains(string(out), "%") {
				t.Errorf("%s: FRR says %v: %s of\n%s", name, err, out, m[1])
			}
		}
	}
	if n < 5 {
		t.Errorf("%d configurations for FRR were found", n)
	}
}
