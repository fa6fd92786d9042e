package speaker

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
	"github.com/fanfare-lb/fanfare/bgp"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/proxy"
	"github.com/fanfare-lb/fanfare/proxy/obstacle"
)

func reportedStatus() Status {
	since := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	until := since.Add(time.Second)
	reason := func(protocol string, code cluster.Code) ReasonStatus {
		return ReasonStatus{Service: "shop/web", Protocol: protocol, Code: code, Message: string(code) + " it is"}
	}
	return Status{
		Node: "n1", NodeUID: "uid-n1", Version: "v1",
		Proxy: proxy.Status{Repairs: 3, Obstacles: []obstacle.Obstacle{
			{Code: obstacle.Firewall, About: "chain inet filter forward",
				Message: "chain inet filter forward drops it"},
		}},
		BGP: bgp.Status{Sessions: []bgp.SessionStatus{
			{Name: "tor1", PeerAddress: netip.MustParseAddr("10.0.0.1"), PeerASN: 65000, State: bgp.Established,
				Since: since, Advertised: 1, BFD: &bgp.BFDStatus{State: "Init"}},
			{Name: "tor2", PeerAddress: netip.MustParseAddr("10.0.0.2"), PeerASN: 65000, State: bgp.OpenSent,
				Since: since, LastError: "connection refused"},
		}},
		Addresses: []AddressStatus{
			{Address: netip.MustParseAddr("192.0.2.1"), Services: []string{"shop/web"}, Programmed: true,
				Announced: true,
				Reasons:   []ReasonStatus{reason("proxy", cluster.Programmed), reason("bgp", cluster.Announced)}},
			{Address: netip.MustParseAddr("192.0.2.2"), Services: []string{"shop/web"}, Programmed: true,
				Lingering: &until,
				Reasons:   []ReasonStatus{reason("proxy", cluster.Programmed), reason("bgp", cluster.NoLocalEndpoint)}},
		},
		Waiting:  []ReasonStatus{reason("ipam", cluster.Unassigned)},
		Problems: []cluster.Problem{{Object: cluster.Named("BGPPeer", "x"), Message: "bad"}},
	}
}

func TestReport(t *testing.T) {
	st := reportedStatus()
	got, err := json.MarshalIndent(report(&st, time.Now()), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	want := `{
  "version": "v1",
  "established": "1/2",
  "sessions": [
    {
      "name": "tor1",
      "address": "10.0.0.1",
      "asn": 65000,
      "state": "Established",
      "since": "2026-01-01T12:00:00Z",
      "routes": 1,
      "bfd": "Down"
    },
    {
      "name": "tor2",
      "address": "10.0.0.2",
      "asn": 65000,
      "state": "Down",
      "since": "2026-01-01T12:00:00Z",
      "routes": 0,
      "error": "connection refused"
    }
  ],
  "addresses": {
    "assigned": 2,
    "forwarded": 2,
    "announced": 1,
    "lingering": 1
  },
  "repairs": 3,
  "attention": 5,
  "reasons": [
    {
      "code": "Firewall",
      "message": "chain inet filter forward drops it"
    },
    {
      "code": "Problem",
      "message": "BGPPeer x: bad"
    },
    {
      "service": "shop/web",
      "code": "Unassigned",
      "message": "Unassigned it is"
    },
    {
      "address": "192.0.2.2",
      "service": "shop/web",
      "code": "NoLocalEndpoint",
      "message": "NoLocalEndpoint it is"
    }
  ]
}`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// However many things are wrong, the object stays well below etcd's 1.5 MB.
func TestReportIsBounded(t *testing.T) {
	st := reportedStatus()
	for range 10_000 {
		st.Addresses = append(st.Addresses, st.Addresses[1])
		st.Problems = append(st.Problems, st.Problems[0])
	}
	for i := range 1000 {
		st.Problems = append(st.Problems, cluster.Problem{
			Object: cluster.Named("BGPPeer", fmt.Sprintf("tor%d", i)), Message: "wrong",
		})
	}
	st.Error = fmt.Sprintf("%1000000s", "x")
	r := report(&st, time.Now())
	data, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Reasons) != v1alpha1.MaxSpeakerReasons || len(data) > 100_000 {
		t.Errorf("%d reasons, %d bytes", len(r.Reasons), len(data))
	}
}

// The mistakes of one namespace do not hide what is wrong with another one.
func TestReportSharesReasons(t *testing.T) {
	st := reportedStatus()
	st.Problems = nil
	for i := range 2000 {
		st.Problems = append(st.Problems, cluster.Problem{
			Object:  cluster.Key{Kind: "Service", Name: cluster.Name{Namespace: "evil", Name: fmt.Sprintf("s%d", i)}},
			Message: "wrong",
		})
	}
	st.Problems = append(st.Problems, cluster.Problem{
		Object: cluster.Key{Kind: "Service", Name: cluster.Name{Namespace: "shop", Name: "web"}}, Message: "wrong",
	})
	evil, shop := 0, 0
	for _, r := range report(&st, time.Now()).Reasons {
		if strings.HasPrefix(r.Message, "Service evil/") {
			evil++
		}
		if strings.HasPrefix(r.Message, "Service shop/web") || r.Service == "shop/web" {
			shop++
		}
	}
	if evil != maxNamespaceReasons || shop < 2 {
		t.Errorf("%d reasons of one namespace, and %d of another one", evil, shop)
	}
}
