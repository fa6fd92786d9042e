package bgp

import (
	"fmt"
	"strings"
	"testing"
	"time"
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
		{name: "another next hop replaces", have: "192.0.2.1/32 via 192.0.2.8", want: "192.0.2.1/32 via 192.0.2.9",
			announce: "192.0.2.1/32 next hop 192.0.2.9"},
		{name: "a next hop replaces none", have: "192.0.2.1/32", want: "192.0.2.1/32 via 192.0.2.9",
			announce: "192.0.2.1/32 next hop 192.0.2.9"},
		{name: "no next hop any more", have: "2001:db8::1/128 via 2001:db8::a", want: "2001:db8::1/128",
			withdraw: "2001:db8::1/128 next hop 2001:db8::a", announce: "2001:db8::1/128"},
	} {
		withdraw, announce := diffRoutes(parse(c.have), parse(c.want))
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
		del, add := diff(c.have, c.want, compareSessions)
		if names(del) != c.del || names(add) != c.add {
			t.Errorf("%v to %v: del %s add %s", c.have, c.want, names(del), names(add))
		}
	}
}

func TestAnnounced(t *testing.T) {
	all := routes("192.0.2.1/32", "192.0.2.2/32 via 192.0.2.9", "2001:db8::1/128", "2001:db8::2/128 via 2001:db8::a")
	four := Session{PeerAddress: routes("192.0.2.1/32")[0].Prefix.Addr()}
	six := Session{PeerAddress: routes("2001:db8::1/128")[0].Prefix.Addr()}
	for _, c := range []struct {
		name     string
		sessions []Session
		want     string
	}{
		{"no session", nil, ""},
		{"IPv4", []Session{four}, "192.0.2.1/32 192.0.2.2/32 2001:db8::2/128"},
		{"IPv6", []Session{six}, "192.0.2.2/32 2001:db8::1/128 2001:db8::2/128"},
		{"both", []Session{six, four}, "192.0.2.1/32 192.0.2.2/32 2001:db8::1/128 2001:db8::2/128"},
	} {
		if got := joined(announced(all, c.sessions)); got != c.want {
			t.Errorf("%s: %s", c.name, got)
		}
	}
}
