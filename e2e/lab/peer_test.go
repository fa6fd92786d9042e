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

// A BGPPeer with defaultGateway names the router as long as the node has a default route.
// Without the route the speaker reports what it waits for, and it connects as soon as the
// route exists.
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
	await(t, Await(ctx, Settle, "n1 to report the missing route", func() error {
		text, err := n1.StatusText(ctx)
		if err == nil && !strings.Contains(text, `spec.defaultGateway "IPv4": no such gateway is known on node n1`) {
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

// The router receives the attributes of the advertisement and of the Service from each
// node, and changing them withdraws nothing.
func TestBGPAttributesChangeWithoutWithdrawal(t *testing.T) {
	l, ctx := laboratory(t), t.Context()
	const advertisement = `
apiVersion: fanfare.io/v1alpha1
kind: BGPAdvertisement
metadata: {name: attributes}
spec: {communities: ["64496:100", "64496:1:2"], med: %d, asPathPrepend: 2}
`
	await(t, l.Cluster.PutText("advertisement", fmt.Sprintf(advertisement, 7)))
	t.Cleanup(func() { await(t, l.Cluster.Delete("advertisement")) })
	announceByAdvertisement(t, l)
	vip := serve(t, l, Service{Name: "attributes", Endpoints: At("p11", "p21"),
		Annotations: map[string]string{"fanfare.io/bgp-communities": "64496:200"}}, NodeNames...)
	expect := func(med int) {
		t.Helper()
		want := path{ASPath: "64497 64497 64497", MED: med, Communities: "64496:100 64496:200", Large: "64496:1:2"}
		await(t, Await(ctx, Settle, "attributes at the router", func() error {
			paths, err := l.Router.paths(ctx, vip)
			if err == nil && !maps.Equal(paths, map[string]path{"n1": want, "n2": want, "n3": want}) {
				err = fmt.Errorf("%+v: want %+v from each node", paths, want)
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

// A path is FRR's view of a route from one node.
type path struct {
	ASPath      string
	MED         int
	Communities string
	Large       string
}

// paths returns the paths to an address by node, or by the address of another neighbour.
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
