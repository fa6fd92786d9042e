package state

import (
	"net/netip"
	"testing"
)

func TestIntervals(t *testing.T) {
	for text, e := range map[string]Element{
		`owned4 { 0.0.0.0/0 }`:          prefixElement(SetOwned, netip.MustParsePrefix("0.0.0.0/0")),
		`owned4 { 192.0.2.7/32 }`:       prefixElement(SetOwned, netip.MustParsePrefix("192.0.2.7/32")),
		`owned4 { 255.255.255.255/32 }`: prefixElement(SetOwned, netip.MustParsePrefix("255.255.255.255/32")),
		`owned6 { ::/0 }`:               prefixElement(SetOwned, netip.MustParsePrefix("::/0")),
		`owned6 { 2001:db8::/127 }`:     prefixElement(SetOwned, netip.MustParsePrefix("2001:db8::/127")),
		`clientifs { "cali*" }`:         ifnameElement("cali", true),
		`clientifs { "cni0" }`:          ifnameElement("cni0", false),
		`clients4 { 10.0.0.1-10.0.0.5 }`: {Set: SetClients,
			Key: "\x0a\x00\x00\x01", Data: "\x0a\x00\x00\x06"},
	} {
		if e.String() != text {
			t.Errorf("%s; want %s", e, text)
		}
	}
}
