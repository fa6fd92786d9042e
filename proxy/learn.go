package proxy

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

const learnPrefix = "learn" // learn10800: remembers for 10,800 s

func learnChain(d time.Duration) string {
	return learnPrefix + strconv.Itoa(int(d/time.Second))
}

// parseLearnChain is the timeout in the name of a learning chain.
func parseLearnChain(name string) (d time.Duration, ok bool) {
	n, err := strconv.Atoi(strings.TrimPrefix(name, learnPrefix))
	d = time.Duration(n) * time.Second
	return d, err == nil && n > 0 && learnChain(d) == name
}

// renderAffinity appends what a frontend with affinity needs on both sides.
func renderAffinity(all []element, vip netip.Addr, fe *Frontend) []element {
	if fe.Affinity == 0 || len(fe.External.Backends)+len(fe.Internal.Backends) == 0 {
		return all
	}
	f := family(vip)
	key := make(encoding, 0, 48).addr(vip).proto(fe.Protocol).port(fe.Port)
	all = append(all, element{set: setLearn + f, key: string(key), data: learnChain(fe.Affinity)})
	for _, s := range []struct {
		set      setID
		backends []Backend
	}{{setExtBack, fe.External.Backends}, {setIntBack, fe.Internal.Backends}} {
		for _, b := range s.backends {
			all = append(all, element{set: s.set + f, key: string(key.addrPort(b.Addr))})
		}
	}
	return all
}

// affinity says whether any frontend has it.
func (v *VIP) affinity() bool {
	return slices.ContainsFunc(v.Frontends, func(f Frontend) bool { return f.Affinity != 0 })
}
