package bgp

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// line is the same route in the words of router.adjIn.
func (r AdvertisedRoute) line() string {
	text := fmt.Sprintf("%s via %s as [%s]", r.Prefix, r.NextHop, r.ASPath)
	if r.LocalPref != nil {
		text += fmt.Sprintf(" localpref %d", *r.LocalPref)
	}
	if r.MED != nil {
		text += fmt.Sprintf(" med %d", *r.MED)
	}
	if len(r.Communities) > 0 {
		text += " community " + strings.Join(r.Communities, " ")
	}
	if len(r.LargeCommunities) > 0 {
		text += " large " + strings.Join(r.LargeCommunities, " ")
	}
	for _, c := range r.ExtendedCommunities {
		text += " extended " + strings.ReplaceAll(c, "bandwidth:", "0x40 0x04 ")
	}
	return text + "\n"
}

// The reported routes equal the routers' tables: eBGP and iBGP, each with its own
// attributes, while there is a shutdown as well; and nothing where no session is up.
func TestAdvertised(t *testing.T) {
	external := startRouter(t, routerConf{})
	internal := startRouter(t, routerConf{addr: "127.0.0.3", asn: 65010, id: "10.255.0.3"})
	s := newServer(t, Options{})
	all := routes("192.0.2.1/32", "192.0.2.2/32", "2001:db8::1/128")
	all[0].Attributes = ForEach(map[string]Attributes{
		"tor1":   {MED: MetricOf(10), Prepend: 2, Communities: CommunitiesOf(0xffffff01)},
		"inside": {LocalPref: MetricOf(300), LargeCommunities: LargeCommunitiesOf(LargeCommunity{64500, 1, 2})},
	})
	all[2].Peers, all[0].Weight = PeersOf("tor1"), 3
	want := state([]Session{internal.session("inside"), external.session("tor1")}, all)
	want.Sessions[1].Weights = true

	check := func(when string) {
		t.Helper()
		for _, x := range []struct {
			name   string
			router *router
		}{{"tor1", external}, {"inside", internal}} {
			var has, told string
			same := func() bool {
				all, err := s.Advertised(t.Context(), x.name)
				must(t, err)
				var lines []string
				for _, r := range all {
					lines = append(lines, r.line())
				}
				slices.Sort(lines)
				has, told = x.router.adjIn(), strings.Join(lines, "")
				return told != "" && has == told
			}
			for begin := time.Now(); !same(); time.Sleep(10 * time.Millisecond) {
				if time.Since(begin) > time.Minute {
					t.Fatalf("%s: %s has\n%swe say\n%s", when, x.name, has, told)
				}
			}
			t.Logf("%s: %s has\n%s", when, x.name, has)
		}
	}
	_, err := s.Set(t.Context(), want)
	must(t, err)
	check("at first")
	want.Shutdown = true
	_, err = s.Set(t.Context(), want)
	must(t, err)
	check("shutdown")

	if _, err := s.Advertised(t.Context(), "tor9"); err == nil || !strings.Contains(err.Error(), `"tor9"`) {
		t.Errorf("a session that is not: %v", err)
	}
	external.gobgp.Stop()
	eventually(t, "session down", func() bool { return s.sessionStatus("tor1").State != Established })
	if all, err := s.Advertised(t.Context(), "tor1"); len(all) != 0 || err != nil {
		t.Errorf("while the session is down: %v, %v", all, err)
	}
}
