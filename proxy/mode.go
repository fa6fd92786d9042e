package proxy

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fanfare-lb/fanfare/internal/kernel/nfnl"
	"github.com/fanfare-lb/fanfare/proxy/iptables"
	"github.com/fanfare-lb/fanfare/proxy/nftables"
	"github.com/fanfare-lb/fanfare/proxy/obstacle"
	"github.com/fanfare-lb/fanfare/proxy/renderer"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// choose determines the mode that works here, and makes its renderer.
func (p *Proxy) choose(ctx context.Context, m Mode) error {
	m, err := ParseMode(string(m))
	if err != nil {
		return err
	}
	why := ""
	if m == ModeAuto {
		m = ModeNFTables
		if missing := p.nft.Missing(ctx); ctx.Err() != nil {
			return ctx.Err()
		} else if missing != nil {
			m, why = ModeIPTables, missing.Error()
			p.log.WarnContext(ctx, "nftables does not work here: using iptables", "reason", why)
		}
	}
	p.rules = &ruleset{
		log: p.log, metrics: p.metrics, record: &p.record, watched: p.watch.rules, mode: m,
		replies: make(state.Replies),
	}
	h := p.host()
	n, x := &nftables.Renderer{Host: h, NFT: p.nft}, &iptables.Renderer{Host: h}
	if m == ModeNFTables {
		p.rules.renderer, p.former = n, x
		p.record.update(func(s *Status) { s.Mode = m })
		return nil
	}
	p.rules.renderer, p.former = x, n
	if err := x.Find(ctx); err != nil {
		if why != "" {
			return fmt.Errorf("nftables: %s; iptables: %w", why, err)
		}
		return fmt.Errorf("iptables: %w", err)
	}
	if p.poller, err = iptables.NewPoller(p.watch.disturb, p.watch.lost, x.Programs); err != nil {
		return fmt.Errorf("iptables: %w", err)
	}
	p.watch.iptables.Store(true)
	p.monitor.TranslateAt(obstacle.PriorityIPTables)
	p.record.update(func(s *Status) { s.Mode, s.Programs, s.ModeReason = m, x.Names(), why })
	p.log.InfoContext(ctx, "using iptables", "programs", x.Names())
	return nil
}

// host is the part of p that renderers use.
func (p *Proxy) host() renderer.Host {
	return renderer.Host{
		Log: p.log, Sock: p.sock,
		Dumped: p.metrics.dumps.Inc,
		Changed: func(took time.Duration) {
			if took > 0 {
				p.metrics.transactions.Observe(took.Seconds())
			}
			p.record.update(func(s *Status) { s.Generation++ })
		},
		Unsupported: func(all []string) { p.record.update(func(s *Status) { s.Unsupported = all }) },
		IgnoringOwn: func(s *nfnl.Socket, transactions uint32, change func() error) error {
			return p.evictor.Without(func() error { return p.watch.ignoringOwn(s, transactions, change) })
		},
	}
}

// nftCrashed reports that a signal ended nft, and what is used instead; nothing if replaced is empty.
func (p *Proxy) nftCrashed(replaced string) {
	p.metrics.crashes.Inc()
	if replaced != "" {
		p.log.Warn("another nft loads the rules", "reason", replaced)
		p.record.update(func(s *Status) { s.NFTReason = replaced })
	}
}

// leave removes Fanfare's rules of the other mode and of other iptables programs, once the rules of
// this mode are in place: until then both forward. Errors are reported and retried.
func (p *Proxy) leave(ctx context.Context) {
	if p.former == nil || !p.left.IsZero() && time.Since(p.left) < forwardRetry {
		return
	}
	p.left = time.Now()
	err := p.former.Remove(ctx)
	if x, ok := p.rules.renderer.(*iptables.Renderer); ok {
		err = errors.Join(err, iptables.RemoveChains(ctx, x.Names()))
	}
	if err != nil {
		p.log.WarnContext(ctx, "rules of another mode remain", "err", err)
	} else {
		p.former = nil
	}
	p.record.update(func(s *Status) { s.ModeError = errorText(err) })
}
