package proxy

import (
	"testing"

	"github.com/fanfare-lb/fanfare/internal/testing/proxytest"
	"github.com/fanfare-lb/fanfare/proxy/iptables"
	"github.com/fanfare-lb/fanfare/proxy/nftables"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// A scene is a State and packets that meet it, with what only tests of this package do with these.
type scene struct{ proxytest.Scene }

func scenes(t *testing.T) (all []scene) {
	t.Helper()
	for _, s := range proxytest.Scenes(t, "testdata/packets/*.txtar") {
		all = append(all, scene{s})
	}
	return all
}

// rules are those of a mode, and what it has learned.
func (s *scene) rules(m Mode) (proxytest.Rules, error) {
	if m == ModeIPTables {
		text := iptables.Text(s.State)
		for _, k := range s.Knows {
			text += ipsetOf(k, &s.State) + " " + k.Client.String() + "\n"
		}
		return proxytest.ParseXT(text)
	}
	text := nftables.Script(state.RenderState(s.State))
	for _, k := range s.Knows {
		set, element := k.Entry()
		text += "add element inet fanfare " + set + " { " + element + " }\n"
	}
	return proxytest.ParseNft(text)
}

// ipsetOf is the set of iptables that has the client.
func ipsetOf(m proxytest.SceneMemory, s *State) string {
	return iptables.AffinityName(s.VIP(m.VIP), s.Frontend(m.VIP, m.Port), m.Backend)
}
