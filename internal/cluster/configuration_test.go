package cluster

import (
	"encoding/json"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
	"github.com/fanfare-lb/fanfare/internal/testing/clustertest"
)

// A process that starts while an object has a mistake goes on with the last good version
// that the process before it wrote, if it is the same object.
func TestConfigurationAfterRestart(t *testing.T) {
	advertisement := func(uid types.UID, communities ...string) *v1alpha1.BGPAdvertisement {
		return &v1alpha1.BGPAdvertisement{ObjectMeta: metav1.ObjectMeta{Name: "lan", UID: uid},
			Spec: v1alpha1.BGPAdvertisementSpec{Peers: []string{"tor1"}, Communities: communities}}
	}
	// restart returns a Builder of a process after one that ended with c.
	restart := func(c *Configuration) *Builder {
		data, err := json.Marshal(c) // as in the speaker's run directory
		if err != nil {
			t.Fatal(err)
		}
		read := &Configuration{}
		if err := json.Unmarshal(data, read); err != nil {
			t.Fatal(err)
		}
		b := NewBuilder()
		b.Know(read)
		b.Set(clustertest.Peer("tor1", "10.0.0.254"), "")
		return b
	}
	first := NewBuilder()
	first.Set(clustertest.Peer("tor1", "10.0.0.254"), "")
	first.Set(advertisement("1", "no-export"), "")
	good := first.Snapshot()
	first.Set(advertisement("1", "no-exprot"), "")
	broken := first.Snapshot()
	if broken.Configuration != good.Configuration {
		t.Error("a version with a mistake changed the configuration")
	}

	again := restart(broken.Configuration)
	again.Set(advertisement("1", "no-exprot"), "")
	s := again.Snapshot()
	if len(s.Advertisements) != 1 || s.Advertisements[0].Communities == nil || s.Advertisements[0].Peers[0] != "tor1" {
		t.Errorf("after a restart: %v", s.Advertisements)
	}
	if len(s.Problems) != 1 || !strings.Contains(s.Problems[0].Message, StaysInUse) {
		t.Errorf("after a restart: problems %v", s.Problems)
	}
	// The next restart finds it, too.
	third := restart(s.Configuration)
	third.Set(advertisement("1", "no-exprot"), "")
	if s := third.Snapshot(); len(s.Advertisements) != 1 {
		t.Errorf("after two restarts: %v", s.Advertisements)
	}

	for what, b := range map[string]*Builder{
		"another object of the name": func() *Builder {
			b := restart(broken.Configuration)
			b.Set(advertisement("2", "no-exprot"), "")
			return b
		}(),
		"it was deleted meanwhile": restart(broken.Configuration),
		"it was deleted and came back with a mistake": func() *Builder {
			b := restart(broken.Configuration)
			b.Delete(Key{"BGPAdvertisement", Name{Name: "lan"}})
			b.Set(advertisement("1", "no-exprot"), "")
			return b
		}(),
	} {
		if s := b.Snapshot(); len(s.Advertisements) != 0 {
			t.Errorf("%s: %v", what, s.Advertisements)
		}
	}
	fine := restart(broken.Configuration)
	fine.Set(advertisement("1", "64500:1"), "")
	if s := fine.Snapshot(); len(s.Problems) != 0 || len(s.Advertisements[0].Communities.Standard) != 1 ||
		s.Advertisements[0].Communities.Standard[0] != 64500<<16|1 {
		t.Errorf("a version without a mistake: %v, problems %v", s.Advertisements[0].Communities, s.Problems)
	}
	fine.Delete(Key{"BGPAdvertisement", Name{Name: "lan"}})
	if c := fine.Snapshot().Configuration; len(c.Advertisements) != 0 {
		t.Errorf("a deleted object is still in the configuration: %v", c.Advertisements)
	}
}

// A status that changes every second must not change the configuration.
func TestConfigurationIgnoresStatus(t *testing.T) {
	b := NewBuilder()
	pool := clustertest.Pool("lan", "192.0.2.0/24")
	b.Set(pool, "")
	s := b.Snapshot()
	pool = pool.DeepCopy()
	pool.Status.IPv4 = &v1alpha1.PoolAddresses{Total: 256}
	pool.ResourceVersion = "7"
	b.Set(pool, "")
	if b.Snapshot() != s {
		t.Error("a status made another snapshot")
	}
}

// Once its pool is gone, an address remains announced as the pool announced it, by the
// address's claim.
func TestOriginOfGonePool(t *testing.T) {
	b := NewBuilder()
	pool := clustertest.Pool("lan", "192.0.2.0/24")
	b.Set(pool, "")
	b.Set(clustertest.Service("web", "192.0.2.7"), "")
	expect := func(when string, pool string, want Origin) {
		t.Helper()
		s := b.Snapshot()
		all := s.Assignments.Slice()
		if len(all) != 1 || all[0].Pool != pool || s.OriginOf(all[0]) != want {
			t.Errorf("%s: assignments %+v, want pool %q from %v", when, all, pool, want)
		}
	}
	expect("at first", "lan", Origin{"lan", AnnounceBGP})
	b.Delete(Key{"AddressPool", Name{Name: "lan"}})
	expect("without pool and claim", "", Origin{})
	claim := &v1alpha1.AddressClaim{ObjectMeta: metav1.ObjectMeta{Name: "192.0.2.7"},
		Spec: v1alpha1.AddressClaimSpec{Address: "192.0.2.7", Pool: "lan", Announce: v1alpha1.AnnounceL2}}
	b.Set(claim, "")
	expect("with a claim", "", Origin{"lan", AnnounceL2})
	if !b.Snapshot().UsesL2() || !b.MayUseL2() {
		t.Error("the claim's address is not counted as one of L2")
	}
	claim = claim.DeepCopy()
	claim.Spec.Announce = v1alpha1.AnnounceAdvertised
	b.Set(claim, "")
	expect("the claim changes", "", Origin{"lan", AnnounceAdvertised})
	b.Set(pool, "")
	expect("the pool is back", "lan", Origin{"lan", AnnounceBGP})
}
