package speaker

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/fanfare-lb/fanfare/bgp"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/proxy"
)

// recentRepair is for how long a repair, or another user of an address, needs attention.
const recentRepair = time.Hour

// Attention returns what an operator must act on, one sentence a line.
func (st *Status) Attention(now time.Time) []string {
	return slices.Concat(st.passAttention(now), st.proxyAttention(now), st.bgpAttention(now), st.objectAttention(),
		st.addressAttention(now))
}

// lines collects formatted lines.
type lines []string

func (l *lines) add(format string, args ...any) { *l = append(*l, fmt.Sprintf(format, args...)) }

// passAttention is about passes that fail or take too long.
func (st *Status) passAttention(now time.Time) (all lines) {
	if st.Error != "" {
		all.add("%s", oneLine(st.Error))
	}
	if st.RunDir != "" {
		all.add("the run directory: %s", oneLine(st.RunDir))
	}
	if st.Behind != nil && now.Sub(*st.Behind) > time.Second {
		all.add("a change has been waiting for %s", duration.HumanDuration(now.Sub(*st.Behind)))
	}
	return all
}

func oneLine(text string) string { return strings.ReplaceAll(text, "\n", "; ") }

// proxyAttention is about the kernel's rules, and what blocks traffic beside them.
func (st *Status) proxyAttention(now time.Time) (all lines) {
	p := st.Proxy
	if ago := now.Sub(p.LastRepair); p.Repairs > 0 && ago < recentRepair {
		all.add("another program changed the kernel's table; it was repaired %d times, last %s ago: %s", p.Repairs,
			duration.HumanDuration(ago), p.Found)
	}
	for _, f := range p.AffinityFull {
		if ago := now.Sub(f.Last); ago < recentRepair {
			all.add("session affinity of %s is full%s", f.Frontend, affinityFullText(p.Mode, f, ago))
		}
	}
	for _, e := range []struct{ format, text string }{
		{"%s", p.NFTReason},
		{"flows to removed endpoints may continue: %s", p.ConntrackError},
		{"this node's iptables may drop traffic to the addresses: %s", p.ForwardError},
		{"connections end when their address moves to this node: %s", p.RedirectError},
	} {
		if e.text != "" {
			all.add(e.format, e.text)
		}
	}
	if f := p.FastPath; f != nil {
		if f.Error != "" {
			all.add("new flows use the rules although --fast-path is set: %s", oneLine(f.Error))
		}
		for _, l := range f.Limited {
			all.add("address %s has %d flows in the fast path, as many as there is room for others; "+
				"%d more used the rules",
				l.Addr, l.Flows, l.Rejected)
		}
		if f.Found != "" {
			all.add("another program changed the kernel's part of --fast-path; it was repaired %d times, last: %s",
				f.Repairs, f.Found)
		}
	}
	for _, o := range p.Obstacles {
		all.add("%s", o.Message)
	}
	if p.ModeError != "" {
		all.add("rules of another --proxy-mode are still in the kernel: %s", p.ModeError)
	}
	return append(all, p.Unsupported...)
}

// affinityFullText says what a full frontend does with its clients, as the end of a sentence. In
// iptables mode the kernel evicts and counts nothing, and each endpoint has a set of its own.
func affinityFullText(mode proxy.Mode, f proxy.AffinityFull, ago time.Duration) string {
	switch since := duration.HumanDuration(ago); {
	case mode == proxy.ModeIPTables:
		return " for an endpoint: new clients take the place of others there, not of the oldest"
	case f.Evicted == 0:
		return fmt.Sprintf(", last %s ago: new clients are not remembered until the oldest are forgotten", since)
	default:
		return fmt.Sprintf(", last %s ago: its clients of longest ago were forgotten for new ones, %d so far", since,
			f.Evicted)
	}
}

// bgpAttention is about sessions and their BFD.
func (st *Status) bgpAttention(now time.Time) (all lines) {
	for _, s := range st.BGP.Sessions {
		if s.State != bgp.Established {
			all.add("router %s: %s", s.Name, s.DownReason())
		}
		if s.OtherRouter.IsValid() {
			all.add("router %s: %s, too, sends router advertisements on %s; the session remains with %s, which sent "+
				"the first: leave one router on the link", s.Name, s.OtherRouter, s.Interface, s.Router())
		}
		switch b := s.BFD; {
		case b == nil:
		case b.Error != "":
			all.add("router %s: %s", s.Name, b.Error)
		case s.State == bgp.Established && !b.Up() && now.Sub(b.Since) >= sessionGrace:
			all.add("router %s: BFD is down, so that only the hold time detects a failure: %s", s.Name, b.Reason)
		}
	}
	return append(all, st.BGP.Problems...)
}

// objectAttention is about membership, interfaces, invalid objects, and Services without
// an address.
func (st *Status) objectAttention() (all lines) {
	if st.Members != nil {
		for _, p := range st.Members.Problems {
			all.add("members: %s", p)
		}
	}
	for _, p := range st.L2.Problems {
		all.add("%s", p.Message)
	}
	for _, p := range st.Problems {
		all.add("%s", p)
	}
	for _, r := range st.Waiting {
		all.add("Service %s: %s", r.Service, r.Message)
	}
	return all
}

// attentionCodes are the reasons of an address that an operator must act on.
var attentionCodes = []cluster.Code{
	cluster.HealthPortTaken, cluster.AggregateRefused, cluster.AttributesRefused, cluster.AttributeClash,
	cluster.AddressInUse, cluster.NoCandidate, cluster.NoInterface,
}

// addressAttention is about addresses that are not served as their Services specify.
func (st *Status) addressAttention(now time.Time) (all lines) {
	for _, a := range st.Addresses {
		for _, r := range a.Reasons {
			if r.Protocol == "proxy" && r.Code != cluster.Programmed || slices.Contains(attentionCodes, r.Code) {
				all.add("Service %s (%s): %s", r.Service, a.Address, r.Message)
			}
		}
		if a.Answered() && a.L2.Conflict != nil && now.Sub(a.L2.Conflict.When) < recentRepair {
			all.add("address %s: %s", a.Address, a.L2.Conflict)
		}
	}
	return all
}
