package plan

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/fanfare-lb/fanfare/proxy"
)

// RefusalRetry is how long what the kernel refused is not tried again, unless it changes: a
// lack of memory may be over, and each attempt costs more than a change.
const RefusalRetry = 5 * time.Minute

// refusalsKept is how many refusals of one address are kept, the newest: an address that
// changes all the time must not fill the memory.
const refusalsKept = 4

// maxRefusal is the length to which the text of a refusal is cut.
const maxRefusal = 600

// Refused are the addresses that a proxy has refused. It is immutable.
type Refused struct {
	all   map[netip.Addr][]refusal
	Since time.Time // of the oldest
}

// A refusal is what was refused, and why.
type refusal struct {
	vip *proxy.VIP
	why string
}

// refuses says why an address cannot be forwarded: it exceeds a limit, or the proxy has
// refused just this. Empty: it can, as far as is known.
func (v *View) refuses(vip *proxy.VIP) string {
	if err := v.limits.Check(vip); err != nil {
		return OneLine(err)
	}
	if v.refused == nil {
		return ""
	}
	for _, r := range v.refused.all[vip.Addr] {
		if r.vip.Equal(vip) {
			return r.why
		}
	}
	return ""
}

// outgrows says why frontends are too many for an address that so many Services share;
// empty: they are not. Of an address with a single Service all is said by refuses.
func (v *View) outgrows(vip *proxy.VIP, more []proxy.Frontend, services int) string {
	if services < 2 || len(more) == 0 {
		return ""
	}
	if err := v.limits.Check(&proxy.VIP{Addr: vip.Addr, Frontends: slices.Concat(vip.Frontends, more)}); err != nil {
		return OneLine(err)
	}
	return ""
}

// With is r and what a proxy has refused now.
func (r *Refused) With(more *proxy.Refused, now time.Time) *Refused {
	next := &Refused{all: map[netip.Addr][]refusal{}, Since: now}
	if r != nil {
		next.Since = r.Since
		maps.Copy(next.all, r.all)
	}
	for _, one := range more.Refusals {
		a := one.VIP.Addr
		list := append(slices.Clip(next.all[a]), refusal{one.VIP, OneLine(one.Err)})
		next.all[a] = list[max(0, len(list)-refusalsKept):]
	}
	return next
}

// Still is r as long as it is not to be tried again, and nil afterwards.
func (r *Refused) Still(now time.Time) *Refused {
	if r == nil || now.Sub(r.Since) >= RefusalRetry {
		return nil
	}
	return r
}

// Next is when to try again; zero: there is nothing to try.
func (r *Refused) Next() time.Time {
	if r == nil {
		return time.Time{}
	}
	return r.Since.Add(RefusalRetry)
}

// OneLine is an error in a sentence of bounded length.
func OneLine(err error) string {
	text := strings.ReplaceAll(err.Error(), "\n", "; ")
	if len(text) > maxRefusal {
		text = strings.ToValidUTF8(text[:maxRefusal], "") + "…"
	}
	return text
}
