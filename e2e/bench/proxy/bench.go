package proxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/fanfare-lb/fanfare/e2e/bench/measure"
	"github.com/fanfare-lb/fanfare/e2e/kube"
)

// A bench is a world for measurements.
type bench struct {
	*world
	options
	tools   string // path of Kubernetes' programs
	log     *slog.Logger
	control *kube.Cluster
	api     *api

	lanes   []*lane
	running []*process // killed at the end
	trials  []trial
	set     setTrial
	load    loadOnly
	changed int // changed endpoints so far
}

// programs returns the measured programs. The first one is the reference for the others.
func programs() []*program {
	return []*program{
		fanfare(rulesName, "--proxy-mode", "nftables"),
		withLegacyIptables(fanfare("Fanfare iptables", "--proxy-mode", "iptables")),
		kubeProxy(kube.NFTables), withLegacyIptables(kubeProxy(kube.IPTables)),
	}
}

// run measures proxy.Set first, then prepares nodes with one Service and with many. Each
// program's rules stay on their own node, so that all traffic is measured at the end, when
// nothing else runs.
func (b *bench) run(ctx context.Context) (err error) {
	b.log.Info("measuring Set") // first, because speakers with a fast path run to the end
	if err := b.setAlone(ctx); err != nil {
		return fmt.Errorf("set: %w", err)
	}
	b.log.Info("control plane")
	if err := b.startControl(ctx, filepath.Join(b.dir, "kubernetes")); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.control.Stop()) }()
	if err := b.one(ctx); err != nil {
		return fmt.Errorf("one Service: %w", err)
	}
	b.log.Info("filling", "services", b.services, "endpoints", b.services*b.endpoints)
	if err := b.api.fill(ctx, 1, b.services, b.endpoints); err != nil {
		return fmt.Errorf("fill: %w", err)
	}
	if err := b.many(ctx); err != nil {
		return fmt.Errorf("%d Services: %w", b.services, err)
	}
	// From here the measured traffic has the machine to itself.
	for _, p := range []*kube.Process{b.control.APIServer, b.control.Etcd} {
		p.Kill()
	}
	b.log.Info("measuring traffic", "lanes", len(b.lanes), "rounds", b.rounds.Count)
	if err := b.measureLanes(ctx, b.lanes, b.rounds); err != nil {
		return err
	}
	if b.load, err = b.measureLoadOnly(ctx); err != nil {
		return fmt.Errorf("%d Services: %w", b.loadServices, err)
	}
	return nil
}

func (b *bench) startControl(ctx context.Context, dir string) (err error) {
	b.control, err = kube.StartIn(ctx, b.world.control, b.tools, dir, apiAddr)
	if err != nil {
		return errors.Join(err, b.control.Stop())
	}
	// The controller manager would process every Service to no effect.
	b.control.ControllerManager.Kill()
	if err = b.control.Install(ctx, filepath.Join(b.Source, "manifests")); err == nil {
		err = b.control.Admin().Apply(ctx, cluster)
	}
	if err == nil {
		b.api, err = newAPI(b.control)
	}
	if err != nil {
		return errors.Join(err, b.control.Stop())
	}
	return nil
}

// Names of lanes that the report uses.
const (
	plainName = "plain routing"
	againName = "plain routing, a second time"
	trackName = "plain routing, connections tracked"
	ruleName  = "one rule that translates, nothing else"
	maskedTo  = ", source replaced"
	rulesName = "Fanfare nftables"
	fastName  = "Fanfare nftables, fast path"
)

// one prepares all nodes with the rules of one Service.
func (b *bench) one(ctx context.Context) error {
	if err := b.api.fill(ctx, 0, 1, b.endpoints); err != nil {
		return err
	}
	direct := b.direct(1)
	plain, err := b.lane(ctx, plainName, 0, direct, nil)
	if err != nil {
		return err
	}
	plain.hasRequests = true
	for _, ref := range []struct{ name, rules string }{{againName, ""}, {trackName, trackOnly}} {
		if _, err := b.lane(ctx, ref.name, 0, direct,
			func(n *node) error { return b.rules(ctx, n, ref.rules) }); err != nil {
			return err
		}
	}
	vips := b.vips(1)
	_, err = b.lane(ctx, ruleName, 1, vips,
		func(n *node) error { return n.nft(ctx, oneRule(vip(0), podsOf(0, b.endpoints))) })
	if err != nil {
		return err
	}
	ours := programs()[0]
	for _, c := range chainSets {
		_, err := b.lane(ctx, ours.name+" "+c.name, 1, vips, func(n *node) error {
			return errors.Join(b.writeRules(ctx, ours, n, home, 1), n.chainSet(ctx, c))
		})
		if err != nil {
			return err
		}
	}
	return b.proxies(ctx, 1, func(p *program, n *node) error { return b.writeRules(ctx, p, n, home, 1) })
}

func (b *bench) rules(ctx context.Context, n *node, text string) error {
	if text == "" {
		return nil
	}
	return n.nft(ctx, text)
}

// many runs all programs with all Services, and keeps their nodes for the traffic.
func (b *bench) many(ctx context.Context) error {
	plain, err := b.lane(ctx, plainName, b.services, b.direct(b.services), nil)
	if err != nil {
		return err
	}
	plain.hasRequests = true
	return b.proxies(ctx, b.services, func(p *program, n *node) error {
		t, err := b.runTrial(ctx, p, n)
		b.trials = append(b.trials, t)
		return err
	})
}

// proxies adds the lanes of all programs. Fanfare preserves the client's address where the
// pods are on the node itself, so that masquerading needs a node without pods. kube-proxy
// masquerades every client of a load balancer's address, and preserves the address of pods
// that use a cluster IP.
func (b *bench) proxies(ctx context.Context, services int, write func(*program, *node) error) error {
	for _, p := range programs() {
		kept, masked := b.vips(services), destinations{tcp: b.vips(services).tcp}
		if !p.ours {
			kept = b.clusterIPs(services)
		}
		l, err := b.lane(ctx, p.name, services, kept, func(n *node) error { return write(p, n) })
		if err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		m := &lane{laneResult: laneResult{Name: p.name + maskedTo, Size: services}, node: l.node, tcp: masked.tcp}
		if !p.ours {
			b.lanes = append(b.lanes, m)
		} else if m, err = b.lane(ctx, m.Name, services, masked,
			func(n *node) error { return b.writeRules(ctx, p, n, away, services) }); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		l.hasRequests, m.hasRequests = true, true
		if p.name == rulesName {
			if err := b.fast(ctx, services); err != nil {
				return fmt.Errorf("%s: %w", fastName, err)
			}
		}
	}
	return nil
}

// fast adds a lane whose node has a fast path. Its speaker keeps running, because a fast
// path that no speaker renews accepts no new flows.
func (b *bench) fast(ctx context.Context, services int) error {
	l, err := b.lane(ctx, fastName, services, b.vips(services), func(n *node) error {
		r, err := b.start(withFastPath(), n, home)
		if err != nil {
			return err
		}
		b.running = append(b.running, r)
		if err := r.awaitLoaded(ctx, services); err != nil {
			return err
		}
		// Otherwise it would process all later Services.
		_, err = n.Run(ctx, "ip", "link", "set", controlLink, "down")
		return err
	})
	if err == nil {
		l.hasRequests = true
	}
	return err
}

// lane adds a lane with its own node, which prepare sets up.
func (b *bench) lane(ctx context.Context, name string, services int, to destinations,
	prepare func(*node) error) (*lane, error) {
	n, err := b.node(ctx, fmt.Sprint("node", len(b.nodes)+1))
	if err != nil {
		return nil, err
	}
	if prepare != nil {
		if err := prepare(n); err != nil {
			return nil, err
		}
	}
	l := &lane{laneResult: laneResult{Name: name, Size: services}, node: n, tcp: to.tcp, udp: to.udp}
	b.lanes = append(b.lanes, l)
	return l, nil
}

// direct returns the pods as destinations, in an order that jumps between Services as
// random choice does.
func (b *bench) direct(services int) destinations {
	return b.interleave(each(services, podPort, func(n int) []netip.Addr { return podsOf(n, b.endpoints) }))
}

func (b *bench) vips(services int) destinations {
	return b.interleave(each(services, servicePort, func(n int) []netip.Addr { return []netip.Addr{vip(n)} }))
}

func (b *bench) clusterIPs(services int) destinations {
	return b.interleave(each(services, servicePort,
		func(n int) []netip.Addr { return []netip.Addr{b.api.clusterIPs[n]} }))
}

// interleave separates neighbours, in the same way at every run.
func (b *bench) interleave(d destinations) destinations {
	return destinations{stride(d.tcp), stride(d.udp)}
}

func stride(all []netip.AddrPort) []netip.AddrPort {
	const prime = 7919
	if len(all)%prime == 0 {
		return all
	}
	out := make([]netip.AddrPort, len(all))
	for i := range all {
		out[i] = all[i*prime%len(all)]
	}
	return out
}

// setAlone measures proxy.Set on three nodes without traffic.
func (b *bench) setAlone(ctx context.Context) (err error) {
	var on []*node
	for range 3 {
		n, err := b.node(ctx, fmt.Sprint("node", len(b.nodes)+1))
		if err != nil {
			return err
		}
		on = append(on, n)
	}
	b.set, err = b.measureSet(ctx, on)
	return err
}

// close ends all processes and removes everything. The control groups are empty by then.
func (b *bench) close() error {
	var err error
	for _, r := range b.running {
		err = errors.Join(err, r.kill())
	}
	err = errors.Join(err, b.down())
	for _, n := range b.nodes {
		for _, root := range memoryRoots {
			if e := os.Remove(filepath.Join(root, n.Name)); e != nil && !errors.Is(e, os.ErrNotExist) {
				err = errors.Join(err, e)
			}
		}
	}
	return err
}

// An options value holds the flags.
type options struct {
	measure.Inputs

	services, endpoints int
	loadServices        int           // that are only loaded and changed
	repeats             int           // changed endpoints for each program
	calm                time.Duration // minimum time between two changes
	sets                int           // changes for measuring Set
	rounds              rounds
}

func (o *options) check() error {
	if os.Geteuid() != 0 {
		return errors.New("network namespaces need root")
	}
	if o.services < 2 || o.services > maxServices || o.endpoints < 2 || o.endpoints > maxEndpoints {
		return fmt.Errorf("want 2 to %d Services with 2 to %d endpoints each", maxServices, maxEndpoints)
	}
	if o.loadServices < 2 || o.loadServices > maxServices {
		return fmt.Errorf("want 2 to %d Services to load", maxServices)
	}
	if slices.Contains([]int{o.repeats, o.sets, o.rounds.Count}, 0) {
		return errors.New("want at least one of everything")
	}
	return nil
}
