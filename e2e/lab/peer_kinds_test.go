package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// peerKinds are BGPPeers of different kinds. Those with a nodeSelector are n1's; each has
// its own address at both ends, by which the router distinguishes them.
const peerKinds = `
apiVersion: fanfare.io/v1alpha1
kind: BGPPeer
metadata: {name: internal}
spec:
  peerAddress: 198.51.100.31
  peerASN: internal
  myASN: 64496
  routerID: 10.9.9.1
  sourceAddress: 198.51.100.131
  holdTime: 30s
  keepaliveTime: 5s
  nodeSelector: {matchLabels: {kubernetes.io/hostname: n1}}
---
apiVersion: fanfare.io/v1alpha1
kind: BGPPeer
metadata: {name: external}
spec:
  peerAddress: 198.51.100.32
  peerASN: external
  myASN: 64497
  localASN: 64555
  ebgpMultihopTTL: 2
  sourceAddress: 198.51.100.132
  holdTime: 60s
  nodeSelector: {matchLabels: {kubernetes.io/hostname: n1}}
---
apiVersion: fanfare.io/v1alpha1
kind: BGPPeer
metadata: {name: passive}
spec:
  peerAddress: 198.51.100.33
  peerASN: 64496
  myASN: 64497
  passive: true
  connectTime: 2s
  sourceAddress: 198.51.100.133
  nodeSelector: {matchLabels: {kubernetes.io/hostname: n1}}
---
apiVersion: fanfare.io/v1alpha1
kind: BGPPeer
metadata: {name: secure}
spec:
  peerAddress: 198.51.100.34
  peerASN: 64496
  myASN: 64497
  ttlSecurityHops: 1
  passwordSecretRef: {name: secure}
  sourceAddress: 198.51.100.134
  nodeSelector: {matchLabels: {kubernetes.io/hostname: n1}}
---
apiVersion: v1
kind: Secret
metadata: {namespace: fanfare-system, name: secure}
type: kubernetes.io/basic-auth
stringData: {password: sesame}
---
apiVersion: fanfare.io/v1alpha1
kind: BGPPeer
metadata: {name: watched}
spec:
  peerAddress: 198.51.100.35
  peerASN: 64496
  myASN: 64497
  device: eth1
  bfd: {transmitInterval: 300ms, receiveInterval: 300ms, detectMultiplier: 7}
  gracefulRestart: {enabled: false}
  sourceAddress: 198.51.100.135
  nodeSelector: {matchLabels: {kubernetes.io/hostname: n1}}
---
apiVersion: fanfare.io/v1alpha1
kind: BGPPeer
metadata: {name: six}
spec:
  peerAddress: 2001:db8:51::36
  peerASN: 64496
  myASN: 64497
  sourceAddress: eth1
---
`

// peerKindsOnRouter is the router's configuration for them.
var peerKindsOnRouter = []string{
	"configure terminal",
	"interface link0", "no ipv6 nd suppress-ra", "ipv6 nd ra-interval 1", "exit",
	"router bgp 64496",
	"neighbor 198.51.100.131 remote-as internal",
	"neighbor 198.51.100.132 remote-as 64555", "neighbor 198.51.100.132 ebgp-multihop 2",
	"neighbor 198.51.100.133 remote-as 64497", "neighbor 198.51.100.133 timers connect 1",
	"neighbor 198.51.100.133 update-source 198.51.100.33", "neighbor 198.51.100.134 remote-as 64497",
	"neighbor 198.51.100.134 password sesame", "neighbor 198.51.100.134 ttl-security hops 1",
	"neighbor 198.51.100.135 remote-as 64497", "neighbor 198.51.100.135 bfd 7 300 300",
	"neighbor 2001:db8:51::11 remote-as 64497", "neighbor 2001:db8:51::12 remote-as 64497",
	"neighbor 2001:db8:51::13 remote-as 64497", "neighbor link0 interface remote-as external",
}

// documentedPeer returns the first BGPPeer of a page in docs.
func documentedPeer(t *testing.T, page string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../docs", page))
	await(t, err)
	m := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindSubmatch(text)
	if m == nil || !strings.Contains(string(m[1]), "kind: BGPPeer") {
		t.Fatalf("docs/%s has no BGPPeer", page)
	}
	return string(m[1])
}

// One node has sessions of every kind with one router. The router sees each as its object
// says, the nodes have the sessions that their nodeSelectors select, and the existing
// session stays up.
func TestBGPPeersOfEveryKind(t *testing.T) {
	l, ctx := laboratory(t), t.Context()
	vip := serve(t, l, Service{Name: "kinds", Endpoints: At("p11", "p21")}, NodeNames...)
	before, err := l.Router.neighbor(ctx, "198.51.100.11")
	await(t, err)
	configurePeerKinds(t, l)
	unnumbered := strings.NewReplacer("name: tor1", "name: unnumbered", "eth1",
		"link0").Replace(documentedPeer(t, "tasks/unnumbered-bgp.md"))
	t.Cleanup(func() {
		await(t, l.Cluster.Delete("peers"))
		awaitSessionNames(t, l, "n1", "tor1")
	})
	await(t, l.Cluster.PutText("peers", peerKinds+unnumbered))

	for at, want := range map[string]frrNeighbor{
		"198.51.100.131":  {RemoteAS: 64496, RouterID: "10.9.9.1", Hold: 30_000},
		"198.51.100.132":  {RemoteAS: 64555, RouterID: "198.51.100.11", Hold: 60_000},
		"198.51.100.133":  {RemoteAS: 64497, RouterID: "198.51.100.11", Hold: 90_000, Port: 179},
		"198.51.100.134":  {RemoteAS: 64497, RouterID: "198.51.100.11", Hold: 90_000},
		"198.51.100.135":  {RemoteAS: 64497, RouterID: "198.51.100.11", Hold: 90_000},
		"2001:db8:51::11": {RemoteAS: 64497, RouterID: "198.51.100.11", Hold: 90_000},
		"2001:db8:51::12": {RemoteAS: 64497, RouterID: "198.51.100.12", Hold: 90_000},
		"2001:db8:51::13": {RemoteAS: 64497, RouterID: "198.51.100.13", Hold: 90_000},
		"link0":           {RemoteAS: 64513, RouterID: "198.51.100.11", Hold: 9_000},
	} {
		want.State = "Established"
		var got frrNeighbor
		await(t, Await(ctx, Settle, "session with "+at, func() (err error) {
			if got, err = l.Router.neighbor(ctx, at); err == nil &&
				(got.State != "Established" || at == "198.51.100.135" && got.BFD.Status != "Up") {
				err = fmt.Errorf("the router shows %+v; n1 shows %s", got, l.Speaker("n1").sessions(ctx))
			}
			return err
		}))
		restarts := "advertisedAndReceived"
		if at == "198.51.100.135" {
			restarts = ""
		}
		if got.Capabilities.GracefulRestart != restarts {
			t.Errorf("%s: graceful restart is %s, want %s", at, got.Capabilities.GracefulRestart, restarts)
		}
		if want.Port == 0 {
			want.Port = got.Port // any port, if the node connects
			if got.Port == 179 {
				t.Errorf("%s: the router opened the connection", at)
			}
		}
		got.BFD, got.Capabilities, got.Lost = want.BFD, want.Capabilities, want.Lost
		if got != want {
			t.Errorf("%s: the router shows %+v, want %+v", at, got, want)
		}
	}
	awaitSessionNames(t, l, "n1", "external", "internal", "passive", "secure", "six", "tor1", "unnumbered", "watched")
	awaitSessionNames(t, l, "n2", "six", "tor1", "unnumbered")
	if views := l.Speaker("n2").sessions(ctx); !strings.Contains(views, "interface link0 is not on this node") {
		t.Errorf("n2 shows %s", views)
	}
	await(t, Await(ctx, Settle, "n2 to report which router does not get "+vip.String(), func() error {
		const want = "not received by unnumbered (Active): interface link0 is not on this node"
		text, err := l.Speaker("n2").command(ctx, "status", "--run-dir", l.Speaker("n2").RunDir, "--json")
		if err == nil && !strings.Contains(text, want) {
			err = fmt.Errorf("not %q: %s", want, text)
		}
		return err
	}))
	if after, err := l.Router.neighbor(ctx, "198.51.100.11"); err != nil || after.Lost != before.Lost {
		t.Errorf("the existing session: %+v, then %+v (%v)", before, after, err)
	}
	// The IPv6 sessions count as the nodes' too, and each node has one more session.
	want := []string{"198.51.100.131", "198.51.100.132", "198.51.100.133", "198.51.100.134", "198.51.100.135", "link0",
		"n1", "n2", "n3"}
	await(t, Await(ctx, Settle, fmt.Sprintf("%s from %v", vip, want), func() error {
		paths, err := l.Router.paths(ctx, vip)
		if got := slices.Sorted(maps.Keys(paths)); err == nil && !slices.Equal(got, want) {
			err = fmt.Errorf("it is from %v", got)
		}
		return err
	}))
}

// configurePeerKinds adds the addresses of both ends and the router's neighbours, until the
// test ends.
func configurePeerKinds(t *testing.T, l *Lab) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context()) // also used for the clean-up
	run := func(node, command string) {
		t.Helper()
		_, err := l.Namespace(node).Run(ctx, strings.Fields(command)...)
		await(t, err)
	}
	apply := func(node, command, undo string) {
		t.Helper()
		run(node, command)
		t.Cleanup(func() { run(node, undo) })
	}
	for i := 31; i <= 35; i++ {
		apply("tor1", fmt.Sprintf("ip addr add 198.51.100.%d/24 dev br0", i),
			fmt.Sprintf("ip addr del 198.51.100.%d/24 dev br0", i))
		apply("n1", fmt.Sprintf("ip addr add 198.51.100.1%d/24 dev eth1", i),
			fmt.Sprintf("ip addr del 198.51.100.1%d/24 dev eth1", i))
	}
	apply("tor1", "ip addr add 2001:db8:51::36/64 dev br0 nodad", "ip addr del 2001:db8:51::36/64 dev br0")
	apply("n1", "ip link add link0 type veth peer name link0 netns "+l.Namespace("tor1").Name, "ip link del link0")
	run("n1", "ip link set link0 up")
	run("tor1", "ip link set link0 up")
	t.Cleanup(func() {
		undo := []string{"configure terminal", "router bgp 64496"}
		for _, line := range peerKindsOnRouter {
			if f := strings.Fields(line); f[0] == "neighbor" &&
				slices.ContainsFunc(f, func(w string) bool { return w == "remote-as" }) {
				undo = append(undo, "no neighbor "+f[1])
			}
		}
		undo = slices.DeleteFunc(undo, func(line string) bool { return line == "no neighbor link0" })
		_, err := l.Router.software.Ask(ctx, append(undo, "no neighbor link0 interface remote-as external")...)
		await(t, err)
	})
	_, err := l.Router.software.Ask(ctx, peerKindsOnRouter...)
	await(t, err)
}

// An frrNeighbor is FRR's view of a neighbour.
type frrNeighbor struct {
	State    string `json:"bgpState"`
	RemoteAS int    `json:"remoteAs"`
	RouterID string `json:"remoteRouterId"`
	Hold     int    `json:"bgpTimerHoldTimeMsecs"`
	Port     int    `json:"portForeign"`
	Lost     int    `json:"connectionsDropped"`
	BFD      struct {
		Status string
	} `json:"peerBfdInfo"`
	Capabilities struct {
		GracefulRestart string
	} `json:"neighborCapabilities"`
}

func (r *Router) neighbor(ctx context.Context, at string) (frrNeighbor, error) {
	out, err := r.software.Ask(ctx, "show bgp neighbors "+at+" json")
	if err != nil {
		return frrNeighbor{}, err
	}
	var views map[string]frrNeighbor
	if err := json.Unmarshal([]byte(out), &views); err != nil {
		return frrNeighbor{}, fmt.Errorf("neighbour %s: %w: %s", at, err, out)
	}
	return views[at], nil
}

// sessions returns the sessions in a speaker's status.
func (s *Speaker) sessions(ctx context.Context) string {
	out, err := s.command(ctx, "status", "--run-dir", s.RunDir, "--json")
	var st struct {
		BGP struct {
			Sessions []struct{ Name, State, LastError string }
		}
	}
	if err = errors.Join(err, json.Unmarshal([]byte(out), &st)); err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%+v", st.BGP.Sessions)
}

func awaitSessionNames(t *testing.T, l *Lab, node string, want ...string) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	await(t, Await(ctx, Settle, "sessions of "+node, func() error {
		st, err := l.Speaker(node).Status(ctx)
		var names []string
		for _, s := range st.BGP.Sessions {
			names = append(names, s.Name)
		}
		if err == nil && !slices.Equal(names, want) {
			err = fmt.Errorf("it has %v, want %v", names, want)
		}
		return err
	}))
}
