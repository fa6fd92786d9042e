package controller

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
	"github.com/fanfare-lb/fanfare/internal/bubble"
	"github.com/fanfare-lb/fanfare/internal/cluster"
)

const advertsPath = "/apis/fanfare.io/v1alpha1/l2advertisements/"

// What is wrong with an L2Advertisement is said by name: only who sees every node can.
func TestAdvertStatus(t *testing.T) {
	named := func(key, value string) *v1alpha1.LabelSelector {
		return &v1alpha1.LabelSelector{MatchLabels: map[string]v1alpha1.LabelValue{key: v1alpha1.LabelValue(value)}}
	}
	for _, tt := range []struct {
		spec v1alpha1.L2AdvertisementSpec
		want string
	}{
		{v1alpha1.L2AdvertisementSpec{}, "2 True Ready: nodes can answer"},
		{v1alpha1.L2AdvertisementSpec{NodeSelector: named("name", "n1"), Interfaces: []string{"eth0", "e*"}}, "1 True Ready: nodes can answer"},
		{v1alpha1.L2AdvertisementSpec{Interfaces: []string{"eth0", "eth7", "bond*"}},
			"2 True Ready: nodes can answer; no selected node has an interface bond* (in a subnet that has addresses of a pool), eth7"},
		{v1alpha1.L2AdvertisementSpec{PreferredNodeSelectors: []v1alpha1.PreferredNodeSelector{
			{Weight: 1, Preference: named("name", "n1")}, {Weight: 2, Preference: named("rack", "z")}}},
			"2 True Ready: nodes can answer; preferredNodeSelectors[1], rack=z, matches none of the 3 selected nodes"},
		{v1alpha1.L2AdvertisementSpec{Interfaces: []string{"eth7"}}, "0 False NoInterface: no selected node has one of its interfaces: eth7"},
		{v1alpha1.L2AdvertisementSpec{NodeSelector: named("rack", "z")}, "0 False NoNode: nodeSelector rack=z matches none of 3 nodes"},
		{v1alpha1.L2AdvertisementSpec{NodeSelector: named("name", "mute")}, "0 False NoSpeaker: no speaker of the 1 selected nodes has told of its interfaces yet"},
		{v1alpha1.L2AdvertisementSpec{Pools: []string{"wan"}}, `2 False Invalid: L2Advertisement lan: spec.pools "wan": there is no AddressPool of this name`},
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
		s := advertStatus(snap, snap.L2Advertisements[0])
		c := s.Conditions[0]
		if got := fmt.Sprintf("%d %s %s: %s", s.Nodes, c.Status, c.Reason, c.Message); got != tt.want {
			t.Errorf("%+v\ngot  %s\nwant %s", tt.spec, got, tt.want)
		}
	}
}

// A status is written when it changes, once, and by the next leader only if it differs.
func TestAdvertsAreWrittenOnce(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newField(t, 2, "n1", "n2")
		put := func() {
			f.put(advertsPath+"lan", f.objects[advertsPath+"lan"], from(t, v1alpha1.L2Advertisement{ObjectMeta: metav1.ObjectMeta{Name: "lan"}}))
		}
		put()
		status := func() v1alpha1.L2AdvertisementStatus {
			return into[v1alpha1.L2Advertisement](t, f.objects[advertsPath+"lan"]).Status
		}
		f.run(4 * time.Second)
		if s := status(); s.Nodes != 2 || len(s.Conditions) != 1 {
			t.Fatalf("status %+v", s)
		}
		first, version := status().Conditions[0].LastTransitionTime, f.version
		f.run(time.Minute)
		f.c.adverts = adverts{client: f.c.writer.client, written: map[string]writtenAdvert{}}
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
