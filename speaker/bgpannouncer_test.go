package speaker

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/bgp"
	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
	"github.com/fanfare-lb/fanfare/internal/plan"
)

func TestErrorWithoutFaults(t *testing.T) {
	faults, closed := bgp.Faults{errors.New("peer b: no ASN")}, errors.New("closed")
	for _, row := range []struct{ err, want error }{
		{nil, nil},
		{closed, closed},
		{faults, nil},
		{errors.Join(faults, nil), nil},
		{errors.Join(faults, closed), closed},
		{fmt.Errorf("set: %w", closed), closed},
	} {
		if got := withoutFaults(row.err); !errors.Is(got, row.want) || (got == nil) != (row.want == nil) {
			t.Errorf("undone(%v) = %v, want %v", row.err, got, row.want)
		}
	}
}

// A peer with an impossible configuration is in the status. It causes neither retries nor
// an unhealthy speaker.
func TestBadSessionDoesNotFailPass(t *testing.T) {
	server := bgp.New(bgp.Options{Logger: slog.New(slog.DiscardHandler)})
	defer server.Close(t.Context(), bgp.Withdraw)
	router := netip.MustParseAddr("127.0.0.1")
	d := &plan.Desired{BGP: bgp.State{ASN: 65001, RouterID: router, Sessions: []bgp.Session{
		{Name: "a", PeerAddress: router, PeerPort: 1, PeerASN: 65000, ConnectTime: time.Hour},
		{Name: "b", PeerAddress: router, PeerPort: 1, PeerASN: 65000, ConnectTime: time.Hour},
	}}}
	if _, err := (&bgpAnnouncer{server: server}).Set(t.Context(), d, sortedset.PrefixSet()); err != nil {
		t.Errorf("error %v", err)
	}
	if st := server.Status(); len(st.Problems) != 1 || len(st.Sessions) != 1 {
		t.Errorf("problems %q, sessions %v", st.Problems, st.Sessions)
	}
}
