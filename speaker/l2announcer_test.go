package speaker

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
	"github.com/fanfare-lb/fanfare/l2"
)

// hostsOf returns the allowed list itself if this node requests and answers for exactly its addresses.
func TestHostsOf(t *testing.T) {
	parse := func(text string) (addrs []netip.Addr) {
		for s := range strings.FieldsSeq(text) {
			addrs = append(addrs, netip.MustParseAddr(s))
		}
		return addrs
	}
	for _, row := range []struct{ requested, have, want string }{
		{"", "", ""},
		{"192.0.2.1 192.0.2.3", "192.0.2.1 192.0.2.3", "192.0.2.1 192.0.2.3"},
		{"192.0.2.1 192.0.2.3", "192.0.2.3", "192.0.2.1 192.0.2.3"}, // one is being probed
		{"192.0.2.3", "192.0.2.3", "192.0.2.3"},                     // one waits for its holder
		{"192.0.2.3", "192.0.2.1 192.0.2.2 192.0.2.3 192.0.2.4", "192.0.2.1 192.0.2.2 192.0.2.3 192.0.2.4"},
		{"", "2001:db8::1", "2001:db8::1"},
	} {
		var requested []l2.Address
		for _, a := range parse(row.requested) {
			requested = append(requested, l2.Address{Addr: a})
		}
		want, got := sortedset.HostPrefixes(parse(row.want)), hostsOf(requested, parse(row.have)).Slice()
		if !slices.Equal(got, want) {
			t.Errorf("requested %s, have %s: got %v, want %s", row.requested, row.have, got, row.want)
		}
	}
}
