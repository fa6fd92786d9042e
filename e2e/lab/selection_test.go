package lab

import (
	"context"
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

// If several advertisements select an address, the router receives the attributes of the
// most specific one for each node, and the communities of all.
func TestBGPMostSpecificAdvertisementWins(t *testing.T) {
	l, ctx := laboratory(t), t.Context()
	vip := serve(t, l, Service{Name: "selected", Endpoints: At("p11", "p21")}, NodeNames...)
	var texts []string
	put := func(name, spec string) {
		t.Helper()
		texts = append(texts, fmt.Sprintf("apiVersion: fanfare.io/v1alpha1\nkind: BGPAdvertisement\nmetadata: "+
			"{name: %s}\nspec: {%s}\n", name, spec))
		await(t, l.Cluster.PutText("advertisements", strings.Join(texts, "---\n")))
	}
	t.Cleanup(func() {
		await(t, l.Cluster.Delete("advertisements"))
		await(t, l.Router.AwaitNextHops(context.WithoutCancel(ctx), Settle, vip, NodeNames...))
	})
	route := func(med int, communities string) path {
		return path{ASPath: "64497", MED: med, Communities: communities}
	}
	expect := func(n1, n2, n3 path) {
		t.Helper()
		want := map[string]path{"n1": n1, "n2": n2, "n3": n3}
		await(t, Await(ctx, Settle, fmt.Sprintf("%+v at the router", want), func() error {
			paths, err := l.Router.paths(ctx, vip)
			if err == nil && !maps.Equal(paths, want) {
				err = fmt.Errorf("%+v", paths)
			}
			return err
		}))
	}
	put("all", `med: 1, communities: ["64496:1"]`)
	announceByAdvertisement(t, l)
	expect(route(1, "64496:1"), route(1, "64496:1"), route(1, "64496:1"))
	put("node", `med: 2, communities: ["64496:2"], nodeSelector: {matchLabels: {kubernetes.io/hostname: n1}}`)
	expect(route(2, "64496:1 64496:2"), route(1, "64496:1"), route(1, "64496:1"))
	put("pool", `med: 3, pools: [lan]`)
	expect(route(3, "64496:1 64496:2"), route(3, "64496:1"), route(3, "64496:1"))
	put("service", `med: 4, communities: ["64496:4"], serviceSelector: {matchExpressions: [{key: tier, operator: DoesNotExist}]}`)
	expect(route(4, "64496:1 64496:2 64496:4"), route(4, "64496:1 64496:4"), route(4, "64496:1 64496:4"))
	put("peer", `med: 5, peers: [tor1], nodeSelector: {matchLabels: {kubernetes.io/hostname: n2}}`)
	expect(route(4, "64496:1 64496:2 64496:4"), route(5, "64496:1 64496:4"), route(4, "64496:1 64496:4"))
	put("other", `med: 6, serviceSelector: {matchLabels: {tier: front}}`) // selects other labels
	// no more specific than "all", which precedes it by name
	put("rival", `med: 7`)
	awaitCode(t, l, "n2", vip, "AttributeOverride")
	expect(route(4, "64496:1 64496:2 64496:4"), route(5, "64496:1 64496:4"), route(4, "64496:1 64496:4"))

	// `fanfare routes` shows what the router has received.
	text, err := l.Speaker("n2").command(ctx, "routes", "tor1", "--run-dir", l.Speaker("n2").RunDir)
	if want := fmt.Sprintf("%s/32 198.51.100.12 64497 - 5 64496:1 64496:4", vip); err != nil ||
		!strings.Contains(strings.Join(strings.Fields(text), " "), want) {
		t.Errorf("n2 announces (%v)\n%s\nwant %s", err, text, want)
	}

	// Of two equally specific ones the first by name counts, and the status has a warning.
	texts = nil
	put("all", "med: 1")
	put("rival", "med: 7")
	expect(route(1, ""), route(1, ""), route(1, ""))
	awaitCode(t, l, "n1", vip, "AttributeClash")

	// A pool that an advertisement selects is announced by advertisements only.
	texts = nil
	put("one", `pools: [lan], nodeSelector: {matchLabels: {kubernetes.io/hostname: n2}}`)
	await(t, l.Router.AwaitNextHops(ctx, Settle, vip, "n2"))
	awaitCode(t, l, "n1", vip, "NotAdvertised")
}

// awaitCode waits until a node's status contains a reason code for an address.
func awaitCode(t *testing.T, l *Lab, node string, vip netip.Addr, code string) {
	t.Helper()
	await(t, Await(t.Context(), Settle, "reason "+code+" on "+node, func() error {
		text, err := l.Speaker(node).command(t.Context(), "status", "--run-dir", l.Speaker(node).RunDir, "--json")
		if err == nil && !strings.Contains(text, `"`+code+`"`) {
			err = fmt.Errorf("status for %s: %s", vip, text)
		}
		return err
	}))
}

// The state of a Node decides whether its routes are withdrawn. Its session stays up.
func TestBGPNodeConditionsWithdrawRoutes(t *testing.T) {
	l, ctx := laboratory(t), t.Context()
	vip := serve(t, l, Service{Name: "conditions", Endpoints: At("p21", "p31")}, NodeNames...)
	text, err := os.ReadFile(filepath.Join(l.Objects, "nodes.yaml"))
	await(t, err)
	before, err := l.Router.neighbor(ctx, "198.51.100.11")
	await(t, err)
	t.Cleanup(func() { await(t, l.Cluster.PutText("nodes", string(text))) })
	// The first Node of the file is n1.
	for _, c := range []struct {
		name, old, new string
		withdraws      bool
	}{
		{"the label", "\n    kubernetes.io/hostname: n1\n",
			"\n    kubernetes.io/hostname: n1\n    node.kubernetes.io/exclude-from-external-load-balancers: \"\"\n",
			true},
		{"cordon", "\nspec:\n", "\nspec:\n  unschedulable: true\n", false},
		{"the taint", "\nspec:\n", "\nspec:\n  taints: [{key: fanfare.io/leaving, effect: NoSchedule}]\n", true},
		{"not Ready", `{type: Ready, status: "True"}`, `{type: Ready, status: "False"}`, true},
		{"unknown", `{type: Ready, status: "True"}`, `{type: Ready, status: "Unknown"}`, false},
		{"no network", `{type: Ready, status: "True"}`,
			`{type: Ready, status: "True"}` + "\n    - {type: NetworkUnavailable, status: \"True\"}", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			changed := strings.Replace(string(text), c.old, c.new, 1)
			if changed == string(text) {
				t.Fatalf("nodes.yaml has no %q", c.old)
			}
			await(t, l.Cluster.PutText("nodes", changed))
			if !c.withdraws {
				// n1 announces a Service that is newer than the change, too.
				serve(t, l, Service{Name: "newer", Endpoints: At("p21")}, NodeNames...)
				await(t, l.Router.AwaitNextHops(ctx, Settle, vip, NodeNames...))
				return
			}
			await(t, l.Router.AwaitNextHops(ctx, Settle, vip, "n2", "n3"))
			await(t, l.Cluster.PutText("nodes", string(text)))
			await(t, l.Router.AwaitNextHops(ctx, Settle, vip, NodeNames...))
		})
	}
	if after, err := l.Router.neighbor(ctx, "198.51.100.11"); err != nil || after.Lost != before.Lost ||
		after.State != "Established" {
		t.Errorf("n1's session: %+v, then %+v (%v)", before, after, err)
	}
}

// An invalid advertisement changes no route: its last valid version stays in use, also
// after a crash of the speaker.
func TestBGPInvalidAdvertisementKeepsLastValid(t *testing.T) {
	l, ctx := laboratory(t), t.Context()
	vip := serve(t, l, Service{Name: "mistaken", Endpoints: At("p11", "p21")}, NodeNames...)
	const text = `
apiVersion: fanfare.io/v1alpha1
kind: BGPAdvertisement
metadata: {name: lan}
spec: {pools: [lan], peers: [tor1], communities: [no-export], nodeSelector: {matchExpressions: [{key: kubernetes.io/hostname, operator: %s}]}}
`
	await(t, l.Cluster.PutText("advertisement", fmt.Sprintf(text, "Exists")))
	t.Cleanup(func() { await(t, l.Cluster.Delete("advertisement")) })
	announceByAdvertisement(t, l)
	expect := func() {
		t.Helper()
		want := path{ASPath: "64497", Communities: "no-export"}
		await(t, Await(ctx, Settle, "no-export at the router", func() error {
			paths, err := l.Router.paths(ctx, vip)
			if err == nil && !maps.Equal(paths, map[string]path{"n1": want, "n2": want, "n3": want}) {
				err = fmt.Errorf("%+v: want %+v from each node", paths, want)
			}
			return err
		}))
	}
	expect()
	began := time.Now()
	load := l.Client.StartLoad(ctx, port(vip, 80))
	await(t, l.Cluster.PutText("advertisement", fmt.Sprintf(text, "Exist")))
	for _, n := range NodeNames {
		await(t, Await(ctx, Settle, "the error on "+n, func() error {
			status, err := l.Speaker(n).StatusText(ctx)
			if err == nil && !strings.Contains(status, "the version before stays in use") {
				err = errors.New(status)
			}
			return err
		}))
	}
	expect()
	await(t, l.Speaker("n1").Kill())
	await(t, l.Speaker("n1").Start())
	await(t, l.AwaitSessions(ctx, "n1"))
	expect()
	expectNoLoss(t, l, load, began)

	// An advertisement that was never valid announces nothing.
	await(t, l.Cluster.Delete("advertisement"))
	await(t, l.Router.AwaitNextHops(ctx, Settle, vip))
	await(t, l.Cluster.PutText("advertisement", fmt.Sprintf(text, "Exist")))
	awaitCode(t, l, "n2", vip, "NotAdvertised")
	if nodes, err := l.Router.NextHops(vip); err != nil || len(nodes) > 0 {
		t.Errorf("%s has the next hops %v, %v", vip, nodes, err)
	}
}
