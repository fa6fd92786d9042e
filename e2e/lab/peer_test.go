package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A peer that is the default gateway is the router for as long as the node's routes say
// so. A node that has no such route when its speaker starts says what it waits for, and
// has its session as soon as there is one.
func TestBGPDefaultGatewayFollowsRoute(t *testing.T) {
	l, ctx := laboratory(t), t.Context()
	vip := serve(t, l, Service{Name: "gateway", Endpoints: At("p11", "p21")}, NodeNames...)
	tor1, err := os.ReadFile(filepath.Join(l.Objects, "tor1.yaml"))
	await(t, err)
	byRoute := strings.Replace(string(tor1), "peerAddress: 198.51.100.1", "defaultGateway: IPv4", 1)
	t.Cleanup(func() { await(t, l.Cluster.PutText("tor1", string(tor1))) })
	await(t, l.Cluster.PutText("tor1", byRoute))
	await(t, l.AwaitSessions(ctx, NodeNames...))
	await(t, l.Router.AwaitNextHops(ctx, Settle, vip, NodeNames...))

	n1 := l.Speaker("n1")
	await(t, n1.Terminate())
	route := func(ctx context.Context, what string) error {
		_, err := l.Namespace("n1").Run(ctx, "ip", "route", what, "default", "via", "198.51.100.1")
		return err
	}
	await(t, route(ctx, "del"))
	t.Cleanup(func() {
		ctx := context.WithoutCancel(ctx)
		await(t, route(ctx, "replace"))
		await(t, l.StartSpeakers(ctx, "n1"))
	})
	await(t, n1.Start())
	await(t, Await(ctx, Settle, "n1 to say what it waits for", func() error {
		text, err := n1.StatusText(ctx)
		if err == nil && !strings.Contains(text, `spec.defaultGateway "IPv4": node n1 is not known to have`) {
			err = errors.New(text)
		}
		return err
	}))
	await(t, route(ctx, "add"))
	await(t, l.AwaitSessions(ctx, NodeNames...))
	await(t, l.Router.AwaitNextHops(ctx, Settle, vip, NodeNames...))
	if _, err := l.Client.Get(ctx, netip.AddrPort{}, port(vip, 80)); err != nil {
		t.Error(err)
	}
}

// The router has the attributes of objects and of the Service itself, from each node; and a
// change of them withdraws nothing.
func TestBGPAttributesChangeWithoutWithdrawal(t *testing.T) {
	l, ctx := laboratory(t), t.Context()
	const advertisement = `
apiVersion: fanfare.io/v1alpha1
kind: BGPAdvertisement
metadata: {name: told}
spec: {communities: ["64496:100", "64496:1:2"], med: %d, asPathPrepend: 2}
`
	await(t, l.Cluster.PutText("advertisement", fmt.Sprintf(advertisement, 7)))
	t.Cleanup(func() { await(t, l.Cluster.Delete("advertisement")) })
	announceByAdvertisement(t, l)
	vip := serve(t, l, Service{Name: "told", Endpoints: At("p11", "p21"),
		Annotations: map[string]string{"fanfare.io/bgp-communities": "64496:200"}}, NodeNames...)
	expect := func(med int) {
		t.Helper()
		want := path{ASPath: "64497 64497 64497", MED: med, Communities: "64496:100 64496:200", Large: "64496:1:2"}
		await(t, Await(ctx, Settle, "attributes at the router", func() error {
			paths, err := l.Router.paths(ctx, vip)
			if err == nil && !maps.Equal(paths, map[string]path{"n1": want, "n2": want, "n3": want}) {
				err = fmt.Errorf("%+v: want %+v of each node", paths, want)
			}
			return err
		}))
	}
	expect(7)
	since := time.Now()
	await(t, l.Cluster.PutText("advertisement", fmt.Sprintf(advertisement, 9)))
	expect(9)
	for _, n := range NodeNames {
		if at := l.Observer.Withdrawn(n, vip, since); !at.IsZero() {
			t.Errorf("%s withdrew %s to announce it with another MED", n, vip)
		}
	}
}

// A path is what FRR knows of a route from one node.
type path struct {
	ASPath      string
	MED         int
	Communities string
	Large       string
}

// paths are those to an address, by the node, or another neighbour.
func (r *Router) paths(ctx context.Context, vip netip.Addr) (map[string]path, error) {
	out, err := r.software.Ask(ctx, fmt.Sprintf("show bgp ipv4 unicast %s/32 json", vip))
	if err != nil {
		return nil, err
	}
	type named struct{ String string }
	var shown struct {
		Paths []struct {
			ASPath         named `json:"aspath"`
			Metric         int
			Community      named
			LargeCommunity named
			Peer           struct{ PeerID, Interface string }
		}
	}
	if err := json.Unmarshal([]byte(out), &shown); err != nil {
		return nil, fmt.Errorf("show bgp: %w: %s", err, out)
	}
	all := map[string]path{}
	for _, p := range shown.Paths {
		by := p.Peer.Interface
		if addr, err := netip.ParseAddr(p.Peer.PeerID); err == nil && by == "" {
			by = nodeName(addr)
		}
		all[by] = path{p.ASPath.String, p.Metric, p.Community.String, p.LargeCommunity.String}
	}
	return all, nil
}
