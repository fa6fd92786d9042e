package controller

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/testing/bubble"
)

const advertsPath = "/apis/fanfare.io/v1alpha1/l2advertisements/"

// The condition names what is wrong with an L2Advertisement.
func TestAdvertStatus(t *testing.T) {
	named := func(key string, value v1alpha1.LabelValue) *v1alpha1.LabelSelector {
		return &v1alpha1.LabelSelector{MatchLabels: map[string]v1alpha1.LabelValue{key: value}}
	}
	for _, tt := range []struct {
		spec v1alpha1.L2AdvertisementSpec
		want string
	}{
		{v1alpha1.L2AdvertisementSpec{}, "2 True Ready: nodes can announce"},
		{v1alpha1.L2AdvertisementSpec{NodeSelector: named("name", "n1"), Interfaces: []string{"eth0", "e*"}},
			"1 True Ready: nodes can announce"},
		{v1alpha1.L2AdvertisementSpec{Interfaces: []string{"eth0", "eth7", "bond*"}},
			"2 True Ready: nodes can announce; no selected node has an interface bond* (in a subnet that has " +
				"addresses of a pool), eth7"},
		{v1alpha1.L2AdvertisementSpec{PreferredNodeSelectors: []v1alpha1.PreferredNodeSelector{
			{Weight: 1, Preference: named("name", "n1")}, {Weight: 2, Preference: named("rack", "z")}}},
			`2 True Warning: nodes can announce; L2Advertisement lan: spec.preferredNodeSelectors[1].preference "rack=z": matches no Node; set it to labels that a Node has`},
		{v1alpha1.L2AdvertisementSpec{
			NodeSelector: named("name", "n1"), PreferredNodeSelectors: []v1alpha1.PreferredNodeSelector{{Weight: 1,
				Preference: named("name", "n2")}},
		},
			"1 True Ready: nodes can announce; preferredNodeSelectors[0], name=n2, matches none of " +
				"the 1 selected nodes"},
		{v1alpha1.L2AdvertisementSpec{Interfaces: []string{"eth7"}},
			"0 False NoInterface: no selected node has one of its interfaces: eth7"},
		{v1alpha1.L2AdvertisementSpec{NodeSelector: named("rack", "z")},
			`0 False NoNode: L2Advertisement lan: spec.nodeSelector "rack=z": matches no Node; set it to labels that a Node has`},
		{v1alpha1.L2AdvertisementSpec{NodeSelector: named("name", "mute")},
			"0 False NoSpeaker: no speaker of the 1 selected nodes has reported its interfaces yet"},
		{v1alpha1.L2AdvertisementSpec{Pools: []string{"wan"}},
			`2 False Invalid: L2Advertisement lan: spec.pools "wan": there is no AddressPool of this name`},
	} {
		b := cluster.NewBuilder()
		for _, n := range []string{"n1", "n2", "mute"} {
			b.Set(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n, Labels: map[string]string{"name": n}}}, "")
		}
		b.Set(speakerStatus("n1", "192.0.2.0/24"), "")
		b.Set(speakerStatus("n2", "192.0.2.0/24"), "")
		b.Set(&v1alpha1.SpeakerStatus{ObjectMeta: metav1.ObjectMeta{Name: "mute"}}, "")
		b.Set(&v1alpha1.L2Advertisement{ObjectMeta: metav1.ObjectMeta{Name: "lan"}, Spec: tt.spec}, "")
		snap := b.Snapshot()
		if got := advertLine(t, snap, "L2Advertisement lan"); got != tt.want {
			t.Errorf("%+v\ngot  %s\nwant %s", tt.spec, got, tt.want)
		}
	}
}

// advertLine is the status of an advertisement in one line.
func advertLine(t *testing.T, snap *cluster.Snapshot, object string) string {
	t.Helper()
	for _, v := range snap.Versions {
		if v.Object().String() != object {
			continue
		}
		s, known := advertStatus(snap, v)
		if !known {
			return "not known"
		}
		c := s.Conditions[0]
		if c.ObservedGeneration != v.Generation || len(s.Conditions) != 1 {
			t.Errorf("%s: conditions %+v, want one of generation %d", object, s.Conditions, v.Generation)
		}
		return fmt.Sprintf("%d %s %s: %s", s.Nodes, c.Status, c.Reason, c.Message)
	}
	return "no such object"
}

// A BGPAdvertisement is Ready when a node has a session with a router that it names, and
// nothing that it names is missing.
func TestBGPAdvertStatus(t *testing.T) {
	const world = `kind: Node
metadata: {name: n1, labels: {rack: a}}
status: {addresses: [{type: InternalIP, address: 10.0.0.11}]}
---
kind: Node
metadata: {name: n2, labels: {rack: b}}
---
kind: AddressPool
metadata: {name: lan}
spec: {announce: Advertised, addresses: [192.0.2.0/25]}
---
kind: AddressPool
metadata: {name: plain}
spec: {announce: BGP, addresses: [198.51.100.0/24]}
---
kind: AddressPool
metadata: {name: inside}
spec: {announce: Advertised, addresses: [10.0.0.128/25]}
---
kind: BGPAdvertisement
metadata: {name: of-inside}
spec: {pools: [inside]}
---
kind: BGPPeer
metadata: {name: tor1}
spec: {myASN: 64512, peerASN: 64513, peerAddress: 10.0.0.1, nodeSelector: {matchLabels: {rack: a}}}
---
kind: BGPAdvertisement
metadata: {name: it, generation: 7}
spec: `
	for spec, want := range map[string]string{
		`{}`: "1 True Ready: nodes can announce; does not apply to AddressPools whose " +
			"spec.announce is not Advertised: plain (BGP)",
		`{pools: [lan], peers: [tor1]}`: "1 True Ready: nodes can announce",
		`{pools: [lan], nodeSelector: {matchLabels: {rack: b}}}`: "0 False NoPeer: none of the 1 selected nodes is " +
			"selected by a BGPPeer of the advertisement; compare the nodeSelectors",
		`{pools: [lan], nodeSelector: {matchLabels: {rack: c}}}`: `0 False NoNode: BGPAdvertisement it: spec.nodeSelector "rack=c": matches no Node; set it to labels that a Node has`,
		`{pools: [lan, typo]}`:                `1 False Invalid: BGPAdvertisement it: spec.pools "typo": there is no AddressPool of this name`,
		`{pools: [lan], peers: [tor1, typo]}`: `1 False Invalid: BGPAdvertisement it: spec.peers "typo": there is no BGPPeer of this name`,
		`{pools: [lan, plain]}`:               `1 False Invalid: BGPAdvertisement it: spec.pools "plain": does not apply to this AddressPool, whose spec.announce is BGP; set that to Advertised, or remove the pool here`,
		`{pools: [lan], aggregationLength: 24}`: `1 True Warning: nodes can announce; BGPAdvertisement it: spec.aggregationLength "24": announces 192.0.2.0/24, ` +
			`which contains addresses of no AddressPool that the advertisement selects, the first of them 192.0.2.128; set it to a larger number, or add the addresses to a pool`,
		`{pools: [inside], aggregationLength: 24}`: `1 False AggregateRefused: BGPAdvertisement it: spec.aggregationLength "24": does not announce 10.0.0.0/24, ` +
			`which contains 10.0.0.1 of BGPPeer tor1: addresses in it are announced one by one; set it to a larger number`,
		`{pools: [lan], aggregationLength: 33}`: `0 False Invalid: BGPAdvertisement it: spec.aggregationLength "33": must be from 0 to 32`,
	} {
		snap := cluster.Parse(decode(t, world+spec)...)
		if got := advertLine(t, snap, "BGPAdvertisement it"); got != want {
			t.Errorf("%s\ngot  %s\nwant %s", spec, got, want)
		}
	}
}

// A broken advertisement has a condition, whether or not an older version is in use.
func TestBrokenAdvertisements(t *testing.T) {
	for _, kind := range []string{"BGPAdvertisement", "L2Advertisement"} {
		b := cluster.NewBuilder()
		set := func(generation int, spec string) {
			for _, o := range decode(t, fmt.Sprintf("kind: %s\nmetadata: {name: it, generation: %d}\nspec: %s", kind,
				generation, spec)) {
				b.Set(o, "")
			}
		}
		object := kind + " it"
		mistake := fmt.Sprintf("0 False Invalid: %s: spec.pools: is empty; write at least one name of an "+
			"AddressPool, or leave the field out for all", object)
		set(1, `{pools: []}`)
		if got := advertLine(t, b.Snapshot(), object); got != mistake {
			t.Errorf("%s, broken from the beginning: got %s, want %s", object, got, mistake)
		}
		set(2, `{}`)
		if got := advertLine(t, b.Snapshot(), object); strings.Contains(got, "Invalid") {
			t.Errorf("%s, mended: %s", object, got)
		}
		set(3, `{pools: []}`)
		if got, want := advertLine(t, b.Snapshot(), object), mistake+"; the version before stays in use"; got != want {
			t.Errorf("%s, broken again: got %s, want %s", object, got, want)
		}
	}
}

// A status is written when it changes, once, and by the next leader only if it differs.
func TestAdvertsAreWrittenOnce(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newField(t, 2, "n1", "n2")
		put := func() {
			f.put(advertsPath+"lan", f.objects[advertsPath+"lan"],
				from(t, v1alpha1.L2Advertisement{ObjectMeta: metav1.ObjectMeta{Name: "lan"}}))
		}
		put()
		status := func() v1alpha1.AdvertisementStatus {
			return into[v1alpha1.L2Advertisement](t, f.objects[advertsPath+"lan"]).Status
		}
		f.run(4 * time.Second)
		if s := status(); s.Nodes != 2 || len(s.Conditions) != 1 {
			t.Fatalf("status %+v", s)
		}
		first, version := status().Conditions[0].LastTransitionTime, f.version
		f.run(time.Minute)
		f.c.adverts = adverts{client: f.c.writer.client}
		f.run(4 * time.Second)
		if f.version != version {
			t.Errorf("%d writes while nothing changed", f.version-version)
		}
		f.add("n3")
		f.run(2 * time.Second)
		if s := status(); s.Nodes != 3 || !s.Conditions[0].LastTransitionTime.Equal(&first) {
			t.Errorf("status %+v, want 3 nodes, and the time as it was", s)
		}
		// Another object of the same name has no status yet.
		f.remove(advertsPath + "lan")
		put()
		f.run(2 * time.Second)
		if s := status(); s.Nodes != 3 {
			t.Errorf("status %+v of the new object", s)
		}
	})
}

// A BGPAdvertisement has a status in a cluster without layer 2, too, and the generation
// that it is about. A broken one has one at once.
func TestBGPAdvertIsWritten(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newStore(t)
		c := start(t, s, nil)
		path := "/apis/fanfare.io/v1alpha1/bgpadvertisements/lan"
		put := func(generation int64, pools ...string) {
			o := v1alpha1.BGPAdvertisement{
				ObjectMeta: metav1.ObjectMeta{Name: "lan", Generation: generation},
				Spec:       v1alpha1.BGPAdvertisementSpec{Pools: pools},
			}
			s.put(path, s.objects[path], from(t, o))
		}
		check := func(what string, generation int64, reason string) {
			t.Helper()
			time.Sleep(poolInterval)
			c.source = s.source()
			if _, errs := c.pass(t.Context()); len(errs) != 0 {
				t.Errorf("%s: %v", what, errs)
			}
			list := into[v1alpha1.BGPAdvertisement](t, s.objects[path]).Status.Conditions
			if len(list) != 1 || list[0].ObservedGeneration != generation || list[0].Reason != reason {
				t.Errorf("%s: conditions %+v, want %s of generation %d", what, list, reason, generation)
			}
		}
		put(1, "")
		check("broken", 1, "Invalid")
		put(2)
		check("mended", 2, "NoPeer")
		put(3, "typo")
		check("misspelt", 3, "Invalid")
	})
}
