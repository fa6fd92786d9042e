package plan

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/fanfare-lb/fanfare/bgp"
	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
)

// Words are the last bytes of prefixes. The weight of a route says where it is from.
func TestRoutesTo(t *testing.T) {
	host := func(last string) netip.Prefix { return netip.MustParsePrefix("192.0.2." + last + "/32") }
	routes := func(words string, weight uint32) bgp.Routes {
		var list []bgp.Route
		for _, w := range strings.Fields(words) {
			list = append(list, bgp.Route{Prefix: host(w), Weight: weight})
		}
		return bgp.RoutesOf(list...)
	}
	for _, row := range []struct{ allowed, desired, sent, want string }{
		{"", "1", "2", ""},
		{"1 2", "", "1 2", "1.2 2.2"},
		{"1 2 4", "", "1 2 3", "1.2 2.2"},
		{"1 2 3", "1 2", "3", "1.1 2.1 3.2"},
		{"1 2", "1 2", "", "1.1 2.1"},
		{"2", "1 2", "1 2", "2.1"},
		{"1 2 3", "3", "1 2 3", "1.2 2.2 3.1"},
	} {
		d := &Desired{BGP: bgp.State{Routes: routes(row.desired, 1)}}
		d.Prefixes = sortedset.PrefixSet(PrefixesOf(d.BGP.Routes.Slice())...)
		var allowed []netip.Prefix
		for _, w := range strings.Fields(row.allowed) {
			allowed = append(allowed, host(w))
		}
		var words []string
		for r := range d.RoutesTo(sortedset.PrefixSet(allowed...), routes(row.sent, 2)).All() {
			words = append(words, fmt.Sprintf("%s.%d", strings.TrimPrefix(r.Prefix.Addr().String(), "192.0.2."),
				r.Weight))
		}
		if have := strings.Join(words, " "); have != row.want {
			t.Errorf("%q of %q and %q: %q, want %q", row.allowed, row.desired, row.sent, have, row.want)
		}
		if got := d.RoutesTo(d.Prefixes, bgp.Routes{}); !got.Same(d.BGP.Routes) {
			t.Errorf("%q: all routes are copied", row.desired)
		}
	}
}
