package fastpath

import (
	"testing"
)

// Connections and datagrams reach pods behind veth pairs and behind a bridge, with the client's
// address, and no packet passes netfilter.
func TestBypassesNetfilter(t *testing.T) {
	inNamespace(t, func(t *testing.T, l *lab) {
		p := l.path()
		for _, pod := range []string{"pod1", "pod3"} {
			l.set(p, state(pod))
			for _, family := range families {
				for _, network := range []string{"tcp", "udp"} {
					c := l.mustDial(network, 0, port("vip", family, 80))
					for range 3 {
						if got, want := ask(c, "who?"), pod+" saw client"; got != want {
							t.Errorf("%s %s: %s; want %s", network, at("vip", family), got, want)
						}
					}
				}
			}
			l.bypassed()
			l.await("four flows", func() bool { return len(l.flows(p)) == 4 })
		}
		if s := p.Status(); len(s.NotOffloaded) != 0 || len(s.Problems) != 0 || len(s.Interfaces) != 1 || s.Full != 0 {
			t.Errorf("status %+v", s)
		}
	})
}
