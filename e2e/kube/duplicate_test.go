package kube

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/internal/nstest"
)

// duplicate is a BGPPeer with the router of routedNode's, first by name, and an advertisement to
// it alone.
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

// Of two BGPPeers with one router the older has the session, whatever their names. kubectl describe,
// the status and the plan name both; the newer takes over when the older is deleted.
func TestDuplicatePeers(t *testing.T) {
	apart(t, func(t *testing.T) {
		f := newFanfare(t)
		f.run("controller")
		nstest.Node(t).Addr("lo", "198.51.100.1/32", "198.51.100.9/32")
		f.bgpd()
		f.speaker()
		must(t, f.Admin().Apply(t.Context(), routedNode+"---"+oneService("web", "10.244.1.5")))
		f.describes("bgppeer/tor9", "SessionEstablished", "node n1 has a session with router tor9 (198.51.100.9, AS65000)")
		f.describes("service/web", "Announced", "to tor9")
		f.outlive("bgppeer/tor9")

		// The advertisement first: a pool with announce Advertised and without one is withdrawn
		// for another reason.
		must(t, f.Admin().Apply(t.Context(), duplicate))
		must(t, f.Admin().Apply(t.Context(), strings.Replace(routedNode, "announce: BGP", "announce: Advertised", 1)))
		const why = "BGPPeer tor9, which is older, names router 198.51.100.9 too"
		f.describes("bgppeer/another", "DuplicatePeer", "node n1 has no session for BGPPeer another: "+why)
		for _, problem := range []string{
			`BGPPeer another: spec.peerAddress "198.51.100.9": node n1 has no session by it: ` + why,
			`BGPAdvertisement one-router: spec.peers "another": node n1 announces it to no router: ` + why + ". Name tor9 instead",
		} {
			f.says(problem, "status", "--run-dir", f.runDir())
			f.says(problem, "plan", "--kubeconfig", f.kubeconfig("speaker"), "--node-name", "n1", "--run-dir", t.TempDir())
		}
		f.describes("service/web", "Withdrawn", "no router that BGPAdvertisement one-router names has a session with this node")

		_, err := f.kubectl("delete", "bgppeer", "tor9")
		must(t, err)
		f.describes("bgppeer/another", "SessionEstablished", "node n1 has a session with router another (198.51.100.9, AS65000)")
		f.describes("service/web", "Announced", "to another")
	})
}

// outlive waits until what is created now is younger than an object: the API server counts in seconds.
func (f *fanfare) outlive(object string) {
	f.Helper()
	out, err := f.kubectl("get", object, "-o", "jsonpath={.metadata.creationTimestamp}")
	must(f.T, err)
	var created time.Time
	must(f.T, json.Unmarshal([]byte(`"`+out+`"`), &created))
	await(f.T, 10*time.Second, object+" to be older", func() error {
		if time.Since(created) < time.Second {
			return errors.New("it is of this second")
		}
		return nil
	})
}
