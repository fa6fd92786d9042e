package plan

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
	"github.com/fanfare-lb/fanfare/proxy"
)

// RefusalRetry is the pause before the same VIP is tried again: the cause, such as a lack of
// memory, may be gone, but each attempt costs more than a change.
const RefusalRetry = 5 * time.Minute

// maxRefusalsKept is how many refusals of one address are kept, the newest ones: an address
// that changes all the time must not exhaust the memory.
const maxRefusalsKept = 4

// maxRefusalText is the maximum length of a refusal's text in bytes.
const maxRefusalText = 600

// Refused are the VIPs that the proxy has refused. It is immutable.
type Refused struct {
	all   map[netip.Addr][]refusal
	Since time.Time // of the oldest
}

// A refusal is a VIP that was refused, and why.
type refusal struct {
	vip *proxy.VIP
	why string
}

// capacity is what the proxy of this node can hold.
type capacity struct {
	limits  proxy.Limits
	refused *Refused // what it could not; nil: nothing
	cuts    map[netip.Addr]*reduction
}

// refusalOf explains why a VIP cannot be forwarded: it exceeds a limit, or the proxy has refused
// it. It is empty if the VIP can be tried.
func (c *capacity) refusalOf(vip *proxy.VIP) string {
	if err := c.limits.Check(vip); err != nil {
		return OneLine(err)
	}
	if c.refused == nil {
		return ""
	}
	for _, r := range c.refused.all[vip.Addr] {
		if r.vip.Equal(vip) {
			return r.why
		}
	}
	return ""
}

// refusalUnseen explains why an address cannot be forwarded if that is known without its frontends.
// There may be tens of thousands, on each of a thousand addresses.
func (c *capacity) refusalUnseen(a *Address) string {
	if cut := c.cuts[a.Addr]; cut != nil && cut.vip == nil {
		a.use = cut.use
		return cut.why
	}
	if len(a.services) != 1 {
		return ""
	}
	if err := c.limits.CheckPorts(len(a.services[0].Ports)); err != nil {
		return OneLine(err)
	}
	return ""
}

// exceedsLimits explains why more frontends exceed the limits of a shared address, empty if they
// do not. An address of a single Service is for refusalOf.
func (c *capacity) exceedsLimits(vip *proxy.VIP, more []proxy.Frontend, services int) string {
	if services < 2 || len(more) == 0 {
		return ""
	}
	if err := c.limits.Check(&proxy.VIP{Addr: vip.Addr, Frontends: slices.Concat(vip.Frontends, more)}); err != nil {
		return OneLine(err)
	}
	return ""
}

// exceedsEntries explains why a Service has more endpoints of all ports than an address can have
// entries, empty if it does not: each needs one or more. So the product of ports and endpoints is
// not made only to be refused.
func exceedsEntries(limits proxy.Limits, e endpoints) string {
	n := 0
	for _, p := range e.ports {
		if p.groupEndpoints != nil {
			n += len(p.all)
		}
	}
	if n <= limits.Entries {
		return ""
	}
	return fmt.Sprintf("endpoints of all ports together: %d; in %s mode an address can have %d entries in the "+
		"kernel: use several Services", n, limits.Mode, limits.Entries)
}

// With returns r and what the proxy has refused now.
func (r *Refused) With(more *proxy.Refused, now time.Time) *Refused {
	next := &Refused{all: map[netip.Addr][]refusal{}, Since: now}
	if r != nil {
		next.Since = r.Since
		maps.Copy(next.all, r.all)
	}
	for _, one := range more.Refusals {
		a := one.VIP.Addr
		list := append(slices.Clip(next.all[a]), refusal{one.VIP, OneLine(one.Err)})
		next.all[a] = list[max(0, len(list)-maxRefusalsKept):]
	}
	return next
}

// differ returns the addresses whose refusals differ from before, in any order.
func (r *Refused) differ(before *Refused) (addrs []netip.Addr) {
	for _, sides := range [][2]*Refused{{r, before}, {before, r}} {
		if sides[0] == nil || r == before {
			continue
		}
		for a, list := range sides[0].all {
			if sides[1] == nil || !sortedset.Same(list, sides[1].all[a]) {
				addrs = append(addrs, a)
			}
		}
	}
	return addrs
}

// Still returns r until it is time to retry, then nil.
func (r *Refused) Still(now time.Time) *Refused {
	if r == nil || now.Sub(r.Since) >= RefusalRetry {
		return nil
	}
	return r
}

// Next is when to retry, zero if there is nothing to retry.
func (r *Refused) Next() time.Time {
	if r == nil {
		return time.Time{}
	}
	return r.Since.Add(RefusalRetry)
}

// OneLine is the text of an error on one line of bounded length.
func OneLine(err error) string {
	text := strings.ReplaceAll(err.Error(), "\n", "; ")
	if len(text) > maxRefusalText {
		text = strings.ToValidUTF8(text[:maxRefusalText], "") + "…"
	}
	return text
}
