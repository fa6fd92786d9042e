package plan

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/fanfare-lb/fanfare/bgp"
	"github.com/fanfare-lb/fanfare/internal/sortedset"
)

// Words are the last bytes of prefixes, in the lists with a weight that says which list it is.
func TestRoutesTo(t *testing.T) {
	host := func(last string) netip.Prefix { return netip.MustParsePrefix("192.0.2." + last + "/32") }
	routes := func(words string, weight uint32) (list []bgp.Route) {
		for _, w := range strings.Fields(words) {
			list = append(list, bgp.Route{Prefix: host(w), Weight: weight})
		}
		return list
	}
	for _, row := range []struct {
		allowed, first, last, want string
		copied                     bool
	}{
		{"", "1", "2", "", false},
		{"1 2", "", "1 2", "1 2", false},
		{"1 2", "", "1 2 3", "1 2", false},
		{"1 2 4", "", "1 2 3", "1 2", false},
		{"2 3", "", "1 2 3", "2 3", true},
		{"1 2 3", "1 2", "3", "1 2 3", true},
		{"1 2", "1 2", "", "1 2", true},
		{"1 2 3", "3", "1 2 3", "1 2 3", true},
	} {
		first, last := routes(row.first, 1), routes(row.last, 2)
		var allowed []netip.Prefix
		for _, w := range strings.Fields(row.allowed) {
			allowed = append(allowed, host(w))
		}
		got := RoutesTo(allowed, first, last)
		var words []string
		for _, r := range got {
			words = append(words, strings.TrimPrefix(r.Prefix.Addr().String(), "192.0.2."))
			if weight := 2 - uint32(strings.Count(row.first, words[len(words)-1])); r.Weight != weight {
				t.Errorf("%s: %s is from list %d, want %d", row.allowed, r.Prefix, r.Weight, weight)
			}
		}
		if have := strings.Join(words, " "); have != row.want {
			t.Errorf("%q of %q and %q: %q, want %q", row.allowed, row.first, row.last, have, row.want)
		}
		if isCopy := !sortedset.Same(got, last[:min(len(got), len(last))]); isCopy != row.copied {
			t.Errorf("%q of %q and %q: copied %v, want %v", row.allowed, row.first, row.last, isCopy, row.copied)
		}
	}
	if last := routes("1 2", 2); !slices.Equal(RoutesTo(nil, last), nil) {
		t.Error("routes to nothing")
	}
}
