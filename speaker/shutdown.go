package speaker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/fanfare-lb/fanfare/bgp"
	"github.com/fanfare-lb/fanfare/internal/plan"
)

// stop ends the speaker. SIGTERM is the same for an upgrade, a drain and a shutdown, so the
// Node object decides:
//
//   - A node that is leaving withdraws everything and forwards for the linger time.
//   - A node that stays expects its next speaker soon: the table stays, and routers
//     keep the routes by graceful restart. Routers without graceful restart drop the
//     routes when the session ends, so those sessions end first, and the others after
//     the linger time.
//
// Layer 2 addresses move to other nodes in both cases. The speaker first announces that it
// leaves, so that the others elect new owners, which begin when this speaker reports that
// it has stopped answering. The table stays and forwards for neighbours that have not
// noticed.
func (s *speaker) stop(kill context.Context) error {
	mode := bgp.Restart
	leave := sync.OnceFunc(s.membership.Leave)
	if s.announcesL2() {
		leave()
	}
	if d := s.result.Load().desired; d != nil {
		mode = s.withdraw(kill, d)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(kill), 5*time.Second)
	defer cancel()
	var errs []error
	if err := s.layer2.announcer.Close(ctx); err != nil {
		errs = append(errs, fmt.Errorf("l2: %w", err))
	}
	leave()
	if err := s.bgp.Close(ctx, mode); err != nil {
		errs = append(errs, fmt.Errorf("bgp: %w", err))
	}
	return errors.Join(errs...)
}

func (s *speaker) announcesL2() bool { return s.layer2.path.announcedAddrs.Len() > 0 }

// withdraw makes the last passes, which withdraw what must not stay announced, and returns
// how to close the BGP sessions.
func (s *speaker) withdraw(kill context.Context, d *plan.Desired) bgp.CloseMode {
	switch {
	case d.Inputs.Self == nil || d.Inputs.Self.Leaving != "":
		linger := s.Linger
		if s.announcesL2() {
			linger = max(linger, s.LingerL2)
		}
		s.Log.Info("stopping for good: withdrawing", "reason", d.Inputs.RefusalMessage, "linger", linger)
		s.drain(kill, (*plan.Desired).WithoutAnnouncements, linger)
		return bgp.Withdraw
	case len(d.Restartable().BGP.Sessions) < len(d.BGP.Sessions) && d.Routed.Len() > 0:
		s.Log.Info("stopping: withdrawing from peers without graceful restart", "linger", s.Linger)
		s.drain(kill, func(d *plan.Desired) *plan.Desired { return d.Restartable().WithoutL2() }, s.Linger)
	case s.announcesL2():
		s.Log.Info("stopping: other nodes answer over L2 from now on; routes and forwarding stay for the next speaker")
		s.reshape = (*plan.Desired).WithoutL2
		// The error is logged. The next speaker adopts what is in the kernel.
		_ = s.runPass(context.WithoutCancel(kill))
	default:
		s.Log.Info("stopping: routes and forwarding stay for the next speaker")
	}
	return bgp.Restart
}

// drain runs passes that are reduced by reshape, for the linger time.
func (s *speaker) drain(kill context.Context, reshape func(*plan.Desired) *plan.Desired, linger time.Duration) {
	s.reshape = reshape
	ctx, cancel := context.WithTimeout(kill, linger)
	defer cancel()
	s.loop(ctx)
}
