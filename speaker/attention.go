package speaker

import (
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/fanfare-lb/fanfare/bgp"
	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// recentRepair is how long a repair is worth telling.
const recentRepair = time.Hour

// Attention is what somebody has to do something about, a sentence each.
func (st *Status) Attention(now time.Time) (lines []string) {
	say := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	if st.Error != "" {
		say("%s", strings.ReplaceAll(st.Error, "\n", "; "))
	}
	if st.Behind != nil && now.Sub(*st.Behind) > time.Second {
		say("a change has been waiting for %s", duration.HumanDuration(now.Sub(*st.Behind)))
	}
	if ago := now.Sub(st.Proxy.LastRepair); st.Proxy.Repairs > 0 && ago < recentRepair {
		say("somebody else changed the kernel's table; it was repaired %d times, last %s ago: %s", st.Proxy.Repairs, duration.HumanDuration(ago), st.Proxy.Found)
	}
	if e := st.Proxy.ConntrackError; e != "" {
		say("flows to endpoints that are gone may go on: %s", e)
	}
	if e := st.Proxy.ForwardError; e != "" {
		say("this node's iptables may drop traffic to the addresses: %s", e)
	}
	if e := st.Proxy.RedirectError; e != "" {
		say("connections to an address that moves to this node end: %s", e)
	}
	if f := st.Proxy.FastPath; f != nil {
		if f.Error != "" {
			say("new flows take the rules where --fast-path could take them: %s", strings.ReplaceAll(f.Error, "\n", "; "))
		}
		if f.Found != "" {
			say("somebody else changed what --fast-path has in the kernel; it was put right %d times, last: %s", f.Repairs, f.Found)
		}
	}
	for _, o := range st.Proxy.Obstacles {
		say("%s", o.Message)
	}
	if e := st.Proxy.ModeError; e != "" {
		say("rules of another --proxy-mode are still in the kernel: %s", e)
	}
	for _, u := range st.Proxy.Unsupported {
		say("%s", u)
	}
	for _, s := range st.BGP.Sessions {
		if s.State != bgp.Established {
			say("router %s: %s", s.Name, s.Trouble())
		}
		switch b := s.BFD; {
		case b == nil:
		case b.Error != "":
			say("router %s: %s", s.Name, b.Error)
		case s.State == bgp.Established && !b.Up() && now.Sub(b.Since) >= sessionGrace:
			say("router %s: BFD does not hear it, so that silence is noticed by the hold time only: %s", s.Name, b.Reason)
		}
	}
	for _, p := range st.BGP.Problems {
		say("%s", p)
	}
	if st.Members != nil {
		for _, p := range st.Members.Problems {
			say("members: %s", p)
		}
	}
	for _, p := range st.L2.Problems {
		say("%s", p.Message)
	}
	for _, p := range st.Problems {
		say("%s", p)
	}
	for _, r := range st.Waiting {
		say("Service %s: %s", r.Service, r.Message)
	}
	for _, a := range st.Addresses {
		for _, r := range a.Reasons {
			if r.Protocol == "proxy" && r.Code != cluster.Programmed || r.Code == cluster.HealthPortTaken ||
				r.Code == cluster.AggregateRefused || r.Code == cluster.AttributesRefused || r.Code == cluster.AttributeClash ||
				r.Code == cluster.AddressInUse || r.Code == cluster.NoCandidate || r.Code == cluster.NoInterface {
				say("Service %s (%s): %s", r.Service, a.Address, r.Message)
			}
		}
		if a.Answered() && a.L2.Conflict != nil && now.Sub(a.L2.Conflict.When) < recentRepair {
			say("address %s: %s", a.Address, a.L2.Conflict)
		}
	}
	return lines
}
