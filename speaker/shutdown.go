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

// stop ends the speaker. SIGTERM comes from an upgrade, a drain and a shutdown
// alike, so the Node object decides:
//
//   - A node that is leaving withdraws everything and goes on forwarding for the
//     linger time, while routers and clients turn away.
//   - A node that stays expects its speaker back: it exits silently and leaves the
//     table; routers keep the routes by graceful restart. Routers without it drop
//     the routes when the session ends, so those sessions end first, and the rest
//     waits for the linger time.
//
// What it answers for over L2 goes to other nodes in any case: nobody keeps that for it.
// It says farewell first, so that others know whose turn it is, and they begin as soon as
// it has said that it stopped. The table, which stays, forwards for those who have not
// heard. The next speaker gets back what is its own.
func (s *speaker) stop(kill context.Context) error {
	how := bgp.Restart
	leave := sync.OnceFunc(s.membership.Leave)
	if len(s.layer2.path.announcedAddrs) > 0 {
		leave()
	}
	if d := s.result.Load().desired; d != nil {
		switch {
		case d.View.Self == nil || d.View.Self.Leaving != "":
			linger := s.Linger
			if len(s.layer2.path.announcedAddrs) > 0 {
				linger = max(linger, s.LingerL2)
			}
			s.Log.Info("stopping for good: withdrawing", "reason", d.View.RefusalMessage, "linger", linger)
			how = bgp.Withdraw
			s.drain(kill, (*plan.Desired).WithoutAnnouncements, linger)
		case len(d.Restartable().BGP.Sessions) < len(d.BGP.Sessions) && len(d.Routed) > 0:
			s.Log.Info("stopping: withdrawing from peers without graceful restart", "linger", s.Linger)
			s.drain(kill, func(d *plan.Desired) *plan.Desired { return d.Restartable().WithoutL2() }, s.Linger)
		case len(s.layer2.path.announcedAddrs) > 0:
			s.Log.Info("stopping: other nodes answer over L2 from now on; routes and forwarding stay for the next speaker")
			s.reshape = (*plan.Desired).WithoutL2
			// Its error is logged, and whoever comes next forwards what is in the kernel.
			_ = s.runPass(context.WithoutCancel(kill))
		default:
			s.Log.Info("stopping: routes and forwarding stay for the next speaker")
		}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(kill), 5*time.Second)
	defer cancel()
	var errs []error
	if err := s.layer2.announcer.Close(ctx); err != nil {
		errs = append(errs, fmt.Errorf("l2: %w", err))
	}
	leave()
	if err := s.bgp.Close(ctx, how); err != nil {
		errs = append(errs, fmt.Errorf("bgp: %w", err))
	}
	return errors.Join(errs...)
}

// drain goes on for the linger time with what reshape leaves of the desired.
func (s *speaker) drain(kill context.Context, reshape func(*plan.Desired) *plan.Desired, linger time.Duration) {
	s.reshape = reshape
	ctx, cancel := context.WithTimeout(kill, linger)
	defer cancel()
	s.loop(ctx)
}
