package kube

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

// duplicate is a BGPPeer with the same router as routedNode's, but first by name, and an
// advertisement to that BGPPeer only.
const duplicate = `
apiVersion: fanfare.io/v1alpha1
kind: BGPPeer
metadata: {name: another}
spec: {peerAddress: 198.51.100.9, sourceAddress: 198.51.100.1, peerASN: 65000, myASN: 65001}
---
apiVersion: fanfare.io/v1alpha1
kind: BGPAdvertisement
metadata: {name: one-router}
spec: {pools: [lan], peers: [another]}
`

// Of two BGPPeers for one router the older has the session, whatever their names. kubectl
// describe, the status and the plan name both; the newer takes over when the older is
// deleted.
func TestOlderDuplicatePeerWins(t *testing.T) {
	isolated(t, func(t *testing.T) {
		f := newFanfare(t)
		f.run("controller")
		nstest.Node(t).Addr("lo", "198.51.100.1/32", "198.51.100.9/32")
		f.bgpd()
		f.speaker()
		must(t, f.Admin().Apply(t.Context(), routedNode+"---"+oneService("web", "10.244.1.5")))
		f.awaitEvent("bgppeer/tor9", "SessionEstablished",
			"node n1 has a session with router tor9 (198.51.100.9, AS65000)")
		f.awaitEvent("service/web", "Announced", "to tor9")
		f.awaitOlder("bgppeer/tor9")

		// The advertisement comes first, because a pool with announce Advertised and no
		// advertisement is withdrawn for another reason.
		must(t, f.Admin().Apply(t.Context(), duplicate))
		must(t, f.Admin().Apply(t.Context(), strings.Replace(routedNode, "announce: BGP", "announce: Advertised", 1)))
		const why = "BGPPeer tor9, which is older, names router 198.51.100.9 too"
		f.awaitEvent("bgppeer/another", "DuplicatePeer", "node n1 has no session for BGPPeer another: "+why)
		for _, problem := range []string{
			`BGPPeer another: spec.peerAddress "198.51.100.9": node n1 has no session by it: ` + why,
			`BGPAdvertisement one-router: spec.peers "another": node n1 announces it to no router: ` + why +
				". Name tor9 instead",
		} {
			f.awaitOutput(problem, "status", "--run-dir", f.runDir())
			f.awaitOutput(problem, "plan", "--kubeconfig", f.kubeconfig("speaker"), "--node-name", "n1", "--run-dir",
				t.TempDir())
		}
		f.awaitEvent("service/web", "Withdrawn",
			"no router that BGPAdvertisement one-router names has a session with this node")

		_, err := f.kubectl("delete", "bgppeer", "tor9")
		must(t, err)
		f.awaitEvent("bgppeer/another", "SessionEstablished",
			"node n1 has a session with router another (198.51.100.9, AS65000)")
		f.awaitEvent("service/web", "Announced", "to another")
	})
}

// awaitOlder waits until new objects are younger than an object: the API server's creation
// times are in seconds.
func (f *fanfare) awaitOlder(object string) {
	f.Helper()
	out, err := f.kubectl("get", object, "-o", "jsonpath={.metadata.creationTimestamp}")
	must(f.T, err)
	var created time.Time
	must(f.T, json.Unmarshal([]byte(`"`+out+`"`), &created))
	await(f.T, 10*time.Second, object+" to be older than new objects", func() error {
		if time.Since(created) < time.Second {
			return errors.New("it was created less than a second ago")
		}
		return nil
	})
}
