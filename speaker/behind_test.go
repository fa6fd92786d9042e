package speaker

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/plan"
	"github.com/fanfare-lb/fanfare/proxy"
)

type willing struct{ intact }

func (willing) Set(context.Context, proxy.State) error { return nil }

// mute is a way to announce that fails at each try.
type mute struct{}

func (mute) Set(context.Context, *plan.Desired, []netip.Prefix) ([]netip.Prefix, error) {
	return nil, errors.Join(errors.New("first"), errors.New("second"))
}

// The kubelet restarts a speaker that is behind for long. That mends no interface and
// brings no right, and would end what goes over BGP again and again.
func TestBehindForMoreThanL2(t *testing.T) {
	for _, c := range []struct {
		name             string
		kernel           forwarder
		muteBGP, muteL2  bool
		behind, anyError bool
	}{
		{"nothing fails", willing{}, false, false, false, false},
		{"L2 fails", willing{}, false, true, false, true},
		{"BGP fails", willing{}, true, false, true, true},
		{"both fail", willing{}, true, true, true, true},
		{"the kernel fails", broken{}, false, false, true, true},
		{"the kernel and L2 fail", broken{}, false, true, true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := quietSpeaker(t, c.kernel)
			if c.muteBGP {
				s.routes.announcer = mute{}
			}
			if c.muteL2 {
				s.links.way.announcer = mute{}
			}
			s.published.Store(&published{})
			d := plan.Decide(s.decider.Config, &cluster.Snapshot{})
			s.busy(s.full)
			err := s.pass.run(t.Context(), d)
			s.publish(d, err)
			if p := s.published.Load(); (p.err != nil) != c.anyError || !p.behind.IsZero() != c.behind {
				t.Errorf("behind since %v, error %v; want behind %t, an error %t", p.behind, p.err, c.behind, c.anyError)
			}
		})
	}
}
