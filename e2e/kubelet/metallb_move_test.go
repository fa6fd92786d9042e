package kubelet

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/e2e/kube"
	"github.com/fanfare-lb/fanfare/e2e/lab"
)

// A move is one from MetalLB to Fanfare, or back, under load.
type move struct {
	*recipe
	manifest string // MetalLB's
	vips     map[string]netip.Addr
	began    time.Time // when MetalLB served
	loads    map[string]*lab.Load
	open     *lab.Flows
}

// startMetalLB removes Fanfare, and installs MetalLB by its own manifest.
func startMetalLB(t *testing.T, c *cluster) *move {
	t.Helper()
	began := time.Now()
	programs, source, err := kube.MetalLB(t.Context())
	must(t, err)
	m := &move{recipe: newRecipe(t, c), manifest: filepath.Join(source, "config/manifests/metallb-native.yaml"),
		vips: map[string]netip.Addr{}, loads: map[string]*lab.Load{}}
	t.Cleanup(m.restore)
	m.step("install.md", "Remove", 0, "")
	for _, program := range []string{"controller", "speaker"} {
		must(t, m.load(program, filepath.Join(programs, program)))
	}
	m.run("kubectl apply -f " + m.manifest)
	m.run("kubectl -n metallb-system rollout status deployment/controller " + timeout)
	m.run("kubectl -n metallb-system rollout status daemonset/speaker " + timeout)
	must(t, lab.Await(t.Context(), limit, "MetalLB's webhook", func() error {
		return c.Kubernetes.Admin().Apply(t.Context(), metalLBObjects+"---"+movingServices)
	}))
	for _, name := range append([]string{"routed", "linked"}, services...) {
		m.awaitPool(name) // MetalLB's controller takes former addresses away that are in none of its pools.
		m.vips[name], err = c.address(t.Context(), name)
		must(t, err)
	}
	m.awaitRouted()
	m.began = time.Now()
	m.Logf("MetalLB serves after %s: %v", since(began), m.vips)
	return m
}

// load gives all nodes the image that MetalLB's manifest names, with a program built here.
func (m *move) load(name, program string) error {
	text, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	archive, err := imageOf([]string{"quay.io/metallb/" + name + ":v0.16.1"}, []string{"/" + name},
		file{"/" + name, 0o755, text})
	if err != nil {
		return err
	}
	path := filepath.Join(m.c.Dir(), "metallb-"+name+".tar")
	err = os.WriteFile(path, archive, 0o644)
	for _, n := range nodes {
		err = errors.Join(err, m.c.kubeNodes[n].load(m.Context(), path))
	}
	return err
}

// restore leaves the cluster as the other tests want it.
func (m *move) restore() {
	var errs []error
	for _, commands := range []string{
		"kubectl delete --ignore-not-found validatingwebhookconfiguration metallb-webhook-configuration",
		"kubectl delete --ignore-not-found -f " + m.manifest,
		"kubectl label nodes --all example.com/announcer-",
		"kubectl -n shop delete --ignore-not-found service routed linked late",
		"if kubectl get crd addresspools.fanfare.io; then kubectl delete " +
			"addresspools.fanfare.io,bgppeers.fanfare.io,bgpadvertisements.fanfare.io,l2advertisements.fanfare.io " +
			"--all; fi",
	} {
		_, err := m.try(context.Background(), commands)
		errs = append(errs, err)
	}
	if err := errors.Join(append(errs, m.c.install(context.Background()))...); err != nil {
		m.Errorf("Fanfare alone again: %v", err)
	}
}

// awaitPool waits until MetalLB's controller serves a Service.
func (m *move) awaitPool(name string) {
	m.Helper()
	must(m.T, lab.Await(m.Context(), limit, "MetalLB to serve "+name, func() error {
		if m.run("kubectl -n shop get service "+name+
			` -o 'jsonpath={.metadata.annotations.metallb\.io/ip-allocated-from-pool}'`) == "" {
			return errors.New("no pool")
		}
		return nil
	}))
}

// expectAddresses checks that each Service has the address that it had at first.
func (m *move) expectAddresses() {
	m.Helper()
	for name, want := range m.vips {
		if got, err := m.c.address(m.Context(), name); err != nil || got != want {
			m.Errorf("Service %s has %s (%v): want %s, as at first", name, got, err, want)
		}
	}
}

func (m *move) startLoad(names ...string) {
	for _, name := range names {
		m.loads[name] = m.c.Client.StartLoad(m.Context(), netip.AddrPortFrom(m.vips[name], 80))
	}
}

// awaitRouted waits until the router sends to all nodes for the addresses by BGP, whose routes have
// the community.
func (m *move) awaitRouted() {
	m.Helper()
	for name, vip := range m.vips {
		if name == "linked" {
			continue
		}
		must(m.T, m.c.Router.AwaitNextHops(m.Context(), limit, vip, nodes...))
		must(m.T, lab.Await(m.Context(), limit, "community 64496:200 from all nodes", func() error {
			routes, err := m.c.Router.Ask(m.Context(), "show bgp ipv4 unicast "+vip.String())
			if err == nil && strings.Count(routes, "Community: 64496:200\n") != len(nodes) {
				err = errors.New(routes)
			}
			return err
		}))
	}
}

// changes counts the changes of the route to a Service's address.
func (m *move) changes(name string) int {
	return len(m.c.Observer.RouteChanges(m.vips[name], m.began, time.Now()))
}

// ended counts the connections that ended.
func (m *move) ended() (n int) {
	m.Helper()
	must(m.T, m.open.AwaitLines(m.Context(), 2))
	for _, f := range m.open.All {
		if f.Err() != nil {
			n++
		}
	}
	return n
}

// toFanfare moves one node by the commands below a heading.
func (m *move) toFanfare(heading, node string) {
	m.Helper()
	began := time.Now()
	m.step(movePage, heading, 0, node)
	m.awaitSessions(node, "Established")
	m.Logf("%s moved in %s; %d changes of the route so far", node, since(began), m.changes("routed"))
}

// toMetalLB takes the step back.
func (m *move) toMetalLB(node string) {
	m.Helper()
	began := time.Now()
	m.inline("kubectl label node NODE example.com/announcer-", node)
	m.awaitSessions(node, "")
	m.Logf("%s moved back in %s; %d changes of the route so far", node, since(began), m.changes("routed"))
}

// awaitSessions waits for the state of the session of a node's Fanfare speaker, empty if there is
// none, and for the routes.
func (m *move) awaitSessions(node, want string) {
	m.Helper()
	must(m.T, lab.Await(m.Context(), limit, "sessions of "+node, func() error {
		if s := m.run("kubectl get speakerstatus " + node + " -o 'jsonpath={.status.sessions[*].state}'"); s != want {
			return fmt.Errorf("they are %q, want %q", s, want)
		}
		return nil
	}))
	m.awaitRouted()
}

// awaitAnnouncer waits until one of the programs announces all addresses and the other none, and answers
// a new ARP request.
func (m *move) awaitAnnouncer(who string, began time.Time) {
	m.Helper()
	want := 0
	if who == "Fanfare" {
		want = len(nodes)*(len(m.vips)-1) + 1
	}
	must(m.T, lab.Await(m.Context(), limit, who+" to announce", func() error {
		n := 0
		for _, announced := range strings.Fields(
			m.run("kubectl get speakerstatus -o 'jsonpath={.items[*].status.addresses.announced}'")) {
			var node int
			fmt.Sscan(announced, &node)
			n += node
		}
		speakers := len(strings.Fields(m.run(
			"kubectl -n metallb-system get pods -l component=speaker --field-selector status.phase=Running -o name")))
		if n != want || (speakers > 0) != (want == 0) {
			return fmt.Errorf("Fanfare has %d announcements, want %d, and MetalLB %d speakers", n, want, speakers)
		}
		return nil
	}))
	_, err := m.c.Namespace("tor1").Run(m.Context(), "ip", "neigh", "flush", "to", m.vips["linked"].String())
	must(m.T, errors.Join(err, m.loads["linked"].AwaitAnswered(m.Context(), time.Now())))
	m.Logf("%s announces after %s", who, since(began))
}

// expectInterrupted ends the loads. The router may change a route twice for each move of a node, and only
// requests in flight at that moment may be lost.
func (m *move) expectInterrupted(moves int, names ...string) {
	m.Helper()
	for _, name := range names {
		r := m.loads[name].Stop()
		report, err := m.c.NoneLost(r, m.vips[name], r.Began)
		changes := len(m.c.Observer.RouteChanges(m.vips[name], r.Began, time.Now()))
		m.Logf("%-8s %s; %d changes of the route", name, report, changes)
		if err != nil || changes > 2*moves {
			m.Errorf("%s: %d changes of the route by %d moves; %v", name, changes, moves, err)
		}
	}
}

// expectMoved ends the load of an address over Layer 2. Only requests in flight when the router began to send
// to another node may be lost, and those for which it verified its entry while no node answered.
func (m *move) expectMoved(moves *lab.Moves, name string) {
	m.Helper()
	r := m.loads[name].Stop()
	at, err := moves.Of(m.vips[name])
	must(m.T, err)
	m.Logf("%-8s %s; it moved %d times", name, r, len(at))
	unresolved := 0
	for _, l := range r.Lost {
		if errors.Is(l.Err, unix.EHOSTUNREACH) {
			unresolved++
		}
	}
	if rest := len(r.Lost) - unresolved - r.Interrupted(at); rest > 0 {
		m.Errorf("%s: %d requests were lost that no move explains; it moved at %v\n%s", name, rest, at,
			r.Losses(r.Began))
	}
}
