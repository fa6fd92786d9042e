package speaker

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/plan"
	"github.com/fanfare-lb/fanfare/proxy"
)

type acceptsAll struct{ intact }

func (acceptsAll) Set(context.Context, proxy.State) error { return nil }

// announcesNothing is an announcer that always fails.
type announcesNothing struct{}

func (announcesNothing) Set(context.Context, *plan.Desired,
	sortedset.Set[netip.Prefix]) (none sortedset.Set[netip.Prefix], err error) {
	return none, errors.Join(errors.New("first"), errors.New("second"))
}

// The kubelet restarts a speaker that is not healthy. A restart corrects neither interfaces
// nor rights, and would disturb BGP each time.
func TestL2FailureKeepsReady(t *testing.T) {
	for _, c := range []struct {
		name             string
		kernel           forwarder
		muteBGP, muteL2  bool
		behind, anyError bool
	}{
		{"nothing fails", acceptsAll{}, false, false, false, false},
		{"L2 fails", acceptsAll{}, false, true, false, true},
		{"BGP fails", acceptsAll{}, true, false, true, true},
		{"both fail", acceptsAll{}, true, true, true, true},
		{"the kernel fails", broken{}, false, false, true, true},
		{"the kernel and L2 fail", broken{}, false, true, true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := speakerWith(t, c.kernel)
			if c.muteBGP {
				s.bgpPath.announcer = announcesNothing{}
			}
			if c.muteL2 {
				s.layer2.path.announcer = announcesNothing{}
			}
			s.result.Store(&passResult{})
			d := plan.Decide(s.decider.Config, &cluster.Snapshot{})
			s.markStart(s.recheckAt)
			err := s.pass.run(t.Context(), d)
			s.publish(d, err)
			if p := s.result.Load(); (p.err != nil) != c.anyError || !p.pendingSince.IsZero() != c.behind {
				t.Errorf("behind since %v, error %v; want behind %t, an error %t", p.pendingSince, p.err, c.behind,
					c.anyError)
			}
		})
	}
}
