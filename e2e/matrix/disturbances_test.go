package matrix

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/fanfare-lb/fanfare/e2e/lab"
)

// A disturbance is a column of the matrix. It happens to one node, or to the router.
type disturbance struct {
	name, title string
	prepare     func(context.Context, *cell) error // before the load; may be nil
	// do causes it and ends it. It sets the cell's away to the time without something that
	// packets need.
	do func(context.Context, *cell) error
}

const apiServerAway = "api-server-away"

var disturbances = []disturbance{
	{name: "speaker-killed", title: "the speaker gets SIGKILL, and is started 2 s later", do: killSpeaker},
	{name: "speaker-frozen", title: "the speaker gets SIGSTOP until packets go elsewhere, and for at " +
		"least 4 s; then SIGCONT", do: freezeSpeaker},
	{name: "speaker-upgraded", title: "SIGTERM, and a start with the table's next schema; then back in the same way",
		do: upgradeSpeaker},
	{name: "router-restarted", title: "the router's software stops (SIGTERM) and starts", do: restartRouter},
	{name: "session-cleared", title: "the router clears the session with the node", do: clearSession},
	{name: "link-flap", title: "the node's link to the router is down for 1 s", do: flapLink},
	{name: "table-flushed", title: "another program flushes the node's ruleset", do: flushTable},
	{name: "conntrack-full", title: "the node's conntrack is full for 1 s", prepare: nearlyFillConntrack,
		do: fillConntrack},
	{name: apiServerAway, title: "the API server is killed, and started 3 s later", do: stopAPIServer},
	{name: "gossip-away", title: "the node's packets to and from port 7874 are dropped for 3 s", do: blockGossip},
	{name: "bad-object", title: "invalid objects, and Services that ask for what they cannot have, are applied",
		do: applyBadObjects},
	{name: "hostile-tenant", title: "1,000 Services with mistakes (100 beside kube-proxy), and some as large as can " +
		"be, are created in another namespace, and deleted", do: floodObjects},
	{name: "object-deleted", title: "the pool and another Service are deleted, and created again", do: deleteObjects},
	{name: "node-added", title: "a Node is created, and a speaker starts there for the first time", prepare: removeNode,
		do: addNode},
	{name: "node-drained", title: "the node is tainted, and its speaker stopped when it gets no more " +
		"packets; then it returns", do: drainNode},
}

func killSpeaker(ctx context.Context, c *cell) error {
	s := c.Speaker(c.node)
	return errors.Join(s.Kill(), pause(ctx, 2*time.Second), s.Start())
}

func freezeSpeaker(ctx context.Context, c *cell) error {
	s := c.Speaker(c.node)
	began := time.Now()
	err := s.Freeze()
	if err == nil {
		err = c.awaitLeft(ctx)
	}
	return errors.Join(err, pause(ctx, time.Until(began.Add(4*time.Second))), s.Resume())
}

func upgradeSpeaker(ctx context.Context, c *cell) error {
	s := c.Speaker(c.node)
	for _, version := range []string{c.next, ""} {
		if err := s.Terminate(); err != nil {
			return err
		}
		s.Binary = version
		if err := s.Start(); err != nil {
			return err
		}
		if err := c.awaitWhole(ctx); err != nil {
			return err
		}
	}
	return nil
}

func restartRouter(ctx context.Context, c *cell) error {
	c.awayFrom = time.Now()
	if err := errors.Join(c.Router.Stop(), c.Router.Start(ctx)); err != nil {
		return err
	}
	c.done = time.Now()
	err := lab.Await(ctx, lab.Settle, "a route to "+c.prefix.String(), func() error {
		nodes, err := c.Router.Via(c.prefix)
		if err == nil && len(nodes) == 0 {
			err = errors.New("none")
		}
		return err
	})
	c.awayTo = time.Now()
	return err
}

func clearSession(ctx context.Context, c *cell) error {
	peer := lab.NodeAddr(c.node, netip.IPv4Unspecified()).String()
	if c.unnumbered {
		peer = "link" + c.node[1:]
	}
	before, err := c.sessionsSoFar(ctx, peer)
	if err != nil {
		return err
	}
	if _, err := c.Router.Ask(ctx, "clear bgp "+peer); err != nil {
		return err
	}
	// Routes need not change: with graceful restart, a session may be back before zebra notices.
	return lab.Await(ctx, lab.Settle, "another session with "+peer, func() error {
		now, err := c.sessionsSoFar(ctx, peer)
		if err == nil && now == before {
			err = fmt.Errorf("%d so far, as before", now)
		}
		return err
	})
}

// sessionsSoFar returns how often the router has had a session with a peer, with the present one.
func (c *cell) sessionsSoFar(ctx context.Context, peer string) (int, error) {
	text, err := c.Router.Ask(ctx, "show bgp neighbors "+peer+" json")
	if err != nil {
		return 0, err
	}
	var by map[string]struct{ ConnectionsEstablished int }
	if err := json.Unmarshal([]byte(text), &by); err != nil {
		return 0, fmt.Errorf("neighbor %s: %w", peer, err)
	}
	if by[peer].ConnectionsEstablished == 0 {
		return 0, fmt.Errorf("neighbor %s: no session so far", peer)
	}
	return by[peer].ConnectionsEstablished, nil
}

func flapLink(ctx context.Context, c *cell) error {
	port := "eth" + c.node[1:]
	if c.unnumbered {
		port = "link" + c.node[1:]
	}
	set := func(state string) error {
		_, err := c.Router.Run(ctx, "ip", "link", "set", port, state)
		return err
	}
	c.awayFrom = time.Now()
	err := errors.Join(set("down"), pause(ctx, time.Second), set("up"), c.awaitReachable(ctx))
	c.awayTo = time.Now()
	return err
}

// awaitReachable waits until the router reaches the node again: neighbours resolve one another a
// moment after the link is up.
func (c *cell) awaitReachable(ctx context.Context) error {
	speaker := netip.AddrPortFrom(lab.NodeAddr(c.node, netip.IPv4Unspecified()), gossipPort)
	return lab.Await(ctx, lab.Settle, c.node+" to be reachable", func() error {
		ctx, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		defer cancel()
		conn, err := c.Router.Dial(ctx, "tcp", netip.AddrPort{}, speaker)
		if err == nil {
			err = conn.Close()
		}
		return err
	})
}

// gossipPort is the port of speakers for one another.
const gossipPort = 7874

func flushTable(ctx context.Context, c *cell) error {
	command := []string{"nft", "flush", "ruleset"}
	if c.proxy != "" || c.calico {
		// kube-proxy would not repair its own, nor the lab's Felix
		command = []string{"nft", "delete", "table", "inet", "fanfare"}
	}
	before, err := c.iptablesRules(ctx)
	if err != nil {
		return err
	}
	c.Observer.Tolerate(c.node, func() {
		c.awayFrom = time.Now()
		if _, err = c.Namespace(c.node).Run(ctx, command...); err != nil {
			return
		}
		err = lab.Await(ctx, lab.Settle, "the rules", func() error { return c.hasRules(ctx, before) })
		c.awayTo = time.Now()
	})
	return err
}

// hasRules returns an error unless the node's kernel has the rules for the address again.
func (c *cell) hasRules(ctx context.Context, before []string) error {
	if !c.iptables {
		if c.Observer.RuleSince(c.node, c.vip, c.awayFrom).IsZero() {
			return errors.New("none yet")
		}
		return nil
	}
	now, err := c.iptablesRules(ctx)
	if err == nil && !slices.Equal(now, before) {
		err = fmt.Errorf("%d rules of %d", len(now), len(before))
	}
	return err
}

// iptablesRules returns the node's rules, sorted; none in nftables mode.
func (c *cell) iptablesRules(ctx context.Context) (rules []string, err error) {
	if !c.iptables {
		return nil, nil
	}
	text, err := c.Namespace(c.node).Run(ctx, "iptables-save")
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "-A") {
			rules = append(rules, line)
		}
	}
	slices.Sort(rules)
	return rules, err
}

// nearlyFull is the percentage to which conntrack is filled before the load, which takes seconds.
const nearlyFull = 94

func nearlyFillConntrack(_ context.Context, c *cell) error {
	return c.Namespace(c.node).FillConntrack(0, nearlyFull)
}

func fillConntrack(ctx context.Context, c *cell) error {
	c.awayFrom = time.Now()
	err := c.Namespace(c.node).FillConntrack(nearlyFull, 100)
	if err == nil {
		err = pause(ctx, time.Second)
	}
	err = errors.Join(err, c.Namespace(c.node).EmptyConntrack())
	c.awayTo = time.Now()
	return err
}

func stopAPIServer(ctx context.Context, c *cell) error {
	c.kube.Kubernetes.APIServer.Kill()
	return errors.Join(pause(ctx, 3*time.Second), c.kube.Kubernetes.StartAPIServer(ctx))
}

func blockGossip(ctx context.Context, c *cell) error {
	return errors.Join(c.Block(ctx, c.node, []uint16{gossipPort}), pause(ctx, 3*time.Second), c.Unblock(ctx, c.node))
}

// invalid are objects with a mistake that an API server refuses, and that a folder of files may have.
// The row aggregate uses the advertisement of that name.
var invalid = map[string]string{
	"tor2": "apiVersion: fanfare.io/v1alpha1\nkind: BGPPeer\nmetadata: {name: tor2}\nspec: {peerASN: " +
		"64496, myASN: 64497}\n",
	"advertisement": "apiVersion: fanfare.io/v1alpha1\nkind: BGPAdvertisement\nmetadata: {name: lan}\nspec: {pools: " +
		"[lan], aggregationLength: 240}\n",
	"wlan": "apiVersion: fanfare.io/v1alpha1\nkind: L2Advertisement\nmetadata: {name: " +
		"wlan}\nspec: {pools: [LAN]}\n",
}

// mistaken are objects that an API server accepts, and a file that is no object.
func (c *cell) mistaken() map[string]string {
	all := map[string]string{
		"office": strings.Replace(c.pool(), "name: lan", "name: office", 1),
		"nowhere": "apiVersion: fanfare.io/v1alpha1\nkind: BGPAdvertisement\nmetadata: {name: nowhere}\nspec: " +
			"{pools: [lann], peers: [tor9], aggregationLength: 8}\n",
	}
	if c.kube == nil {
		all["typo"] = "apiVersion: v1\nkind: Service\nmetadata: {name: typo\nspec: [\n"
		maps.Copy(all, invalid)
	}
	return all
}

func applyBadObjects(ctx context.Context, c *cell) (err error) {
	want := []string{"AddressPool office", "shop/outside", "shop/twin"}
	if c.kube == nil {
		want = append(want, "BGPPeer tor2", "BGPAdvertisement lan", "L2Advertisement wlan")
	} else if err := c.refused(ctx); err != nil {
		return err
	}
	files := c.mistaken()
	for name, text := range files {
		err = errors.Join(err, c.Cluster.PutText(name, text))
	}
	for _, s := range []lab.Service{
		{Name: "outside", Ask: []netip.Addr{netip.MustParseAddr("198.18.0.1")}, Endpoints: lab.At("p11")},
		{Name: "twin", Ask: []netip.Addr{c.vip}, Families: c.service.Families, Endpoints: lab.At("p21")},
	} {
		files[s.Name] = ""
		err = errors.Join(err, c.Cluster.Put(s))
	}
	err = errors.Join(err, c.awaitReported(ctx, want...), pause(ctx, 500*time.Millisecond))
	for name := range files {
		if name == "advertisement" && c.announce != nil {
			err = errors.Join(err, c.Cluster.PutText(name, advertisement))
			continue
		}
		err = errors.Join(err, c.Cluster.Delete(name))
	}
	return err
}

// refused tries the invalid objects at the API server.
func (c *cell) refused(ctx context.Context) error {
	for name, text := range invalid {
		if err := c.kube.Kubernetes.Admin().Apply(ctx, text); !apierrors.IsInvalid(err) {
			return fmt.Errorf("%s at the API server: %v: want it refused as invalid", name, err)
		}
	}
	return nil
}

// awaitReported waits until all speakers report these objects.
func (c *cell) awaitReported(ctx context.Context, objects ...string) error {
	return lab.Await(ctx, lab.Settle, "reported mistakes", func() error {
		for _, n := range lab.NodeNames {
			text, err := c.Speaker(n).StatusText(ctx)
			if err != nil {
				return err
			}
			for _, word := range objects {
				if !strings.Contains(text, word) {
					return fmt.Errorf("%s does not show %s", n, word)
				}
			}
		}
		return nil
	})
}

// pool returns the text of the pool as it is.
func (c *cell) pool() string {
	text, err := os.ReadFile(c.Objects + "/pool.yaml")
	if err != nil {
		panic(err) // start has read its neighbour
	}
	if c.announce != nil {
		return strings.Replace(string(text), "announce: BGP", "announce: Advertised", 1)
	}
	return string(text)
}

func deleteObjects(ctx context.Context, c *cell) error {
	pool := c.pool()
	if err := errors.Join(c.Cluster.Delete("pool"), c.Cluster.Delete(neighbour.Name)); err != nil {
		return err
	}
	// The other Service is withdrawn, lingers, and its rules go.
	err := lab.Await(ctx, lab.Settle, "the other Service to go", func() error {
		for _, n := range lab.NodeNames {
			st, err := c.Speaker(n).Status(ctx)
			if err != nil {
				return err
			}
			for _, a := range st.Addresses {
				if slices.Contains(a.Services, "shop/"+neighbour.Name) && a.Announced {
					return fmt.Errorf("%s announces %s", n, a.Address)
				}
			}
		}
		return nil
	})
	return errors.Join(err, pause(ctx, 500*time.Millisecond), c.Cluster.PutText("pool", pool), c.Cluster.Put(neighbour))
}

// removeNode makes the node a machine that was never part of the cluster.
func removeNode(ctx context.Context, c *cell) error {
	s := c.Speaker(c.node)
	if err := c.putNode(leaving); err != nil {
		return err
	}
	if err := c.awaitLeft(ctx); err != nil {
		return err
	}
	if err := s.Terminate(); err != nil {
		return err
	}
	if _, err := c.Namespace(c.node).Run(ctx, c.Binary, "cleanup", "--run-dir", s.RunDir); err != nil {
		return err
	}
	gone := without
	if c.kube != nil {
		gone = leaving // kube-proxy and the speaker's token need the object
	}
	return errors.Join(os.RemoveAll(s.RunDir), c.Namespace(c.node).DeleteConntrack(c.vip), c.putNode(gone))
}

func addNode(_ context.Context, c *cell) error {
	return errors.Join(c.putNode(asItIs), c.Speaker(c.node).Start())
}

func drainNode(ctx context.Context, c *cell) error {
	if err := c.putNode(leaving); err != nil {
		return err
	}
	if err := c.awaitLeft(ctx); err != nil {
		return err
	}
	s := c.Speaker(c.node)
	return errors.Join(s.Terminate(), c.putNode(asItIs), s.Start())
}
