package state

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

const learnPrefix = "learn" // learn10800: remembers for 10,800 s

func LearnChain(d time.Duration) string {
	return learnPrefix + strconv.Itoa(int(d/time.Second))
}

// ParseLearnChain is the timeout in the name of a learning chain.
func ParseLearnChain(name string) (d time.Duration, ok bool) {
	n, err := strconv.Atoi(strings.TrimPrefix(name, learnPrefix))
	d = time.Duration(n) * time.Second
	return d, err == nil && n > 0 && LearnChain(d) == name
}

// renderAffinity appends what a frontend with affinity needs on both sides.
func renderAffinity(all []Element, vip netip.Addr, fe *Frontend) []Element {
	if fe.Affinity == 0 || len(fe.External.Backends)+len(fe.Internal.Backends) == 0 {
		return all
	}
	f := Family(vip)
	key := make(Encoding, 0, 48).Addr(vip).Proto(fe.Protocol).Port(fe.Port)
	all = append(all, Element{Set: SetLearn + f, Key: string(key), Data: LearnChain(fe.Affinity)})
	for _, s := range []struct {
		set      SetID
		backends []Backend
	}{{SetExtBack, fe.External.Backends}, {SetIntBack, fe.Internal.Backends}} {
		for _, b := range s.backends {
			all = append(all, Element{Set: s.set + f, Key: string(key.AddrPort(b.Addr))})
		}
	}
	return all
}

// affinity says whether any frontend has it.
func (v *VIP) affinity() bool {
	return slices.ContainsFunc(v.Frontends, func(f Frontend) bool { return f.Affinity != 0 })
}
