package bgp

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
)

func list[T fmt.Stringer](items []T) string {
	words := make([]string, len(items))
	for i, x := range items {
		words[i] = x.String()
	}
	return strings.Join(words, ", ")
}

func TestDiffRoutes(t *testing.T) {
	for _, c := range []struct {
		name, have, want   string
		withdraw, announce string
	}{
		{name: "nothing"},
		{name: "first", want: "192.0.2.1/32, 192.0.2.2/32", announce: "192.0.2.1/32, 192.0.2.2/32"},
		{name: "last", have: "192.0.2.1/32, 192.0.2.2/32", withdraw: "192.0.2.1/32, 192.0.2.2/32"},
		{name: "same", have: "192.0.2.1/32, 2001:db8::1/128", want: "192.0.2.1/32, 2001:db8::1/128"},
		{name: "between", have: "192.0.2.1/32, 192.0.2.3/32", want: "192.0.2.2/32, 192.0.2.3/32, 192.0.2.4/32",
			withdraw: "192.0.2.1/32", announce: "192.0.2.2/32, 192.0.2.4/32"},
		{name: "same address, another length", have: "192.0.2.0/24", want: "192.0.2.0/25",
			withdraw: "192.0.2.0/24", announce: "192.0.2.0/25"},
		{name: "other routers", have: "192.0.2.1/32 to tor1", want: "192.0.2.1/32 to tor2",
			announce: "192.0.2.1/32 to tor2"},
		{name: "another weight", have: "192.0.2.1/32 weight 1", want: "192.0.2.1/32 weight 3",
			announce: "192.0.2.1/32 weight 3"},
	} {
		withdraw, announce := diffRoutes(RoutesOf(parse(c.have)...), RoutesOf(parse(c.want)...))
		if list(withdraw) != c.withdraw || list(announce) != c.announce {
			t.Errorf("%s: withdraw %s; announce %s", c.name, list(withdraw), list(announce))
		}
	}
}

func parse(list string) []Route {
	if list == "" {
		return nil
	}
	return routes(strings.Split(list, ", ")...)
}

func TestDiffSessions(t *testing.T) {
	a := Session{Name: "a", PeerASN: 1}
	b := Session{Name: "b", PeerASN: 1}
	slow := b
	slow.HoldTime = time.Minute
	names := func(s []Session) (out string) {
		for _, x := range s {
			out += x.Name + " "
		}
		return out
	}
	for _, c := range []struct {
		have, want []Session
		del, add   string
	}{
		{nil, []Session{a, b}, "", "a b "},
		{[]Session{a, b}, []Session{b}, "a ", ""},
		{[]Session{a, b}, []Session{a, slow}, "b ", "b "},
		{[]Session{a, b}, nil, "a b ", ""},
	} {
		del, add := sortedset.Diff(c.have, c.want, compareSessions)
		if names(del) != c.del || names(add) != c.add {
			t.Errorf("%v to %v: del %s add %s", c.have, c.want, names(del), names(add))
		}
	}
}

func TestAnnounced(t *testing.T) {
	all := RoutesOf(routes("192.0.2.1/32", "2001:db8::1/128")...)
	four := Session{PeerAddress: netip.MustParseAddr("192.0.2.254")}
	four6 := four
	four6.NextHop = netip.MustParseAddr("2001:db8::a")
	six := Session{PeerAddress: netip.MustParseAddr("2001:db8::b")}
	for _, c := range []struct {
		name     string
		sessions []Session
		want     string
	}{
		{"no session", nil, ""},
		{"IPv4", []Session{four}, "192.0.2.1/32"},
		{"IPv4 with an IPv6 next hop", []Session{four6}, "192.0.2.1/32 2001:db8::1/128"},
		{"IPv6", []Session{six}, "192.0.2.1/32 2001:db8::1/128"},
		{"both", []Session{six, four}, "192.0.2.1/32 2001:db8::1/128"},
	} {
		for _, last := range []string{"", "192.0.2.1/32", "2001:db8::1/128", "192.0.2.1/32 2001:db8::1/128",
			"192.0.2.1/32 2001:db8::1/128 2001:db8::2/128"} {
			for _, before := range [][]Session{c.sessions, {four6}} {
				var was announcement
				was = was.next(RoutesOf(routes(strings.Fields(last)...)...), before)
				got := was.next(all, c.sessions).prefixes
				if joined(got) != c.want {
					t.Errorf("%s, after %q: %s", c.name, last, joined(got))
				}
				if joined(was.prefixes) == c.want && !got.Same(was.prefixes) {
					t.Errorf("%s: returned another set than the last one, which is equal", c.name)
				}
			}
		}
	}
}
