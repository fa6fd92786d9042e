package speaker

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/fanfare-lb/fanfare/proxy"
)

// refusedAgain is how long what the kernel refused is not tried again, unless it changes: a
// lack of memory may be over, and each attempt costs more than a change.
const refusedAgain = 5 * time.Minute

// maxRefusal is the length to which the text of a refusal is cut.
const maxRefusal = 600

// Refused are the addresses that a proxy has refused. It is immutable.
type Refused struct {
	all   map[netip.Addr][]refusal
	since time.Time // of the oldest
}

// A refusal is what was refused, and why.
type refusal struct {
	vip *proxy.VIP
	why string
}

// refuses says why an address cannot be forwarded: it exceeds a limit, or the proxy has
// refused just this. Empty: it can, as far as is known.
func (v *view) refuses(vip *proxy.VIP) string {
	if err := v.limits.Check(vip); err != nil {
		return oneLine(err)
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
func (v *view) outgrows(vip *proxy.VIP, more []proxy.Frontend, services int) string {
	if services < 2 || len(more) == 0 {
		return ""
	}
	if err := v.limits.Check(&proxy.VIP{Addr: vip.Addr, Frontends: slices.Concat(vip.Frontends, more)}); err != nil {
		return oneLine(err)
	}
	return ""
}

// with is r and what a proxy has refused now.
func (r *Refused) with(more *proxy.Refused, now time.Time) *Refused {
	next := &Refused{all: map[netip.Addr][]refusal{}, since: now}
	if r != nil {
		next.since = r.since
		maps.Copy(next.all, r.all)
	}
	for _, one := range more.Refusals {
		a := one.VIP.Addr
		next.all[a] = append(slices.Clip(next.all[a]), refusal{one.VIP, oneLine(one.Err)})
	}
	return next
}

// still is r as long as it is not to be tried again, and nil afterwards.
func (r *Refused) still(now time.Time) *Refused {
	if r == nil || now.Sub(r.since) >= refusedAgain {
		return nil
	}
	return r
}

// next is when to try again; zero: there is nothing to try.
func (r *Refused) next() time.Time {
	if r == nil {
		return time.Time{}
	}
	return r.since.Add(refusedAgain)
}

// oneLine is an error in a sentence of bounded length.
func oneLine(err error) string {
	text := strings.ReplaceAll(err.Error(), "\n", "; ")
	if len(text) > maxRefusal {
		text = strings.ToValidUTF8(text[:maxRefusal], "") + "…"
	}
	return text
}
