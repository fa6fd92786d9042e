package membership

import (
	"fmt"
	"net/netip"
	"reflect"
	"testing"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/membership/gossip"
)

func TestInterfacesRoundTrip(t *testing.T) {
	list := []cluster.Interface{
		{Name: "eth0", MAC: [6]byte{2, 0, 0, 0, 0, 1},
			Prefixes: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("192.0.2.128/25"),
				netip.MustParsePrefix("2001:db8::/61"), netip.MustParsePrefix("2001:db8::1/128")}},
		{Name: "an-interface-15"},
	}
	b, left := EncodeInterfaces(list)
	got, err := DecodeInterfaces(b)
	if len(left) != 0 || err != nil || !reflect.DeepEqual(got, list) {
		t.Errorf("%+v became %+v, %v were left out: %v", list, got, left, err)
	}
	if len(b) > 80 {
		t.Errorf("%d bytes", len(b))
	}
	if got, err := DecodeInterfaces(nil); got != nil || err != nil {
		t.Errorf("nothing became %v, %v", got, err)
	}
}

// Interfaces without room are omitted and counted.
func TestTooManyInterfacesOmitted(t *testing.T) {
	var list []cluster.Interface
	for i := range 100 {
		list = append(list, cluster.Interface{
			Name: fmt.Sprintf("vlan%d", i), Prefixes: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")},
		})
	}
	b, left := EncodeInterfaces(list)
	got, err := DecodeInterfaces(b)
	if err != nil || len(got)+len(left) != len(list) || len(got) < 20 || len(b) > gossip.MaxMeta {
		t.Errorf("%d encoded and %v omitted, in %d bytes: %v", len(got), left, len(b), err)
	}
}

func FuzzInterfaces(f *testing.F) {
	b, _ := EncodeInterfaces([]cluster.Interface{{Name: "eth0",
		Prefixes: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}})
	f.Add(b)
	f.Add([]byte{metaVersion, 200})
	f.Add([]byte{2, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		list, err := DecodeInterfaces(b)
		if err != nil || len(b) > gossip.MaxMeta {
			return
		}
		again, left := EncodeInterfaces(list)
		back, err := DecodeInterfaces(again)
		if len(left) != 0 || err != nil || !reflect.DeepEqual(back, list) {
			t.Errorf("%x: %+v became %+v: %v", b, list, back, err)
		}
	})
}
