package main

import (
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
	"github.com/fanfare-lb/fanfare/proxy"
)

func policy(t *testing.T, args string) (proxy.SNAT, error) {
	t.Helper()
	var f snatFlags
	set := pflag.NewFlagSet("", pflag.ContinueOnError)
	f.add(set)
	if err := set.Parse(strings.Fields(args)); err != nil {
		t.Fatal(err)
	}
	return f.policy()
}

func TestSNATFlags(t *testing.T) {
	addr, prefix := netip.MustParseAddr, netip.MustParsePrefix
	for _, row := range []struct {
		args string
		want proxy.SNAT
	}{
		{"", proxy.SNAT{}},
		{"--snat-ports fully-random", proxy.SNAT{}},
		{"--snat-ports random", proxy.SNAT{Ports: proxy.PortRandom}},
		{"--snat-ports keep", proxy.SNAT{Ports: proxy.PortKept}},
		{"--snat-sources 192.0.2.1,2001:db8::1",
			proxy.SNAT{Sources: []netip.Addr{addr("192.0.2.1"), addr("2001:db8::1")}}},
		{"--snat-never-cidrs 2001:db8::/33 --snat-never-cidrs 10.1.2.3/8,10.1.0.0/16,2001:db8:8000::/33",
			proxy.SNAT{Never: []netip.Prefix{prefix("10.0.0.0/8"), prefix("2001:db8::/32")}}},
		{"--masquerade-mark 0x4000/0x4000", proxy.SNAT{Mark: proxy.Mark{Value: 0x4000, Mask: 0x4000}}},
		{"--masquerade-mark 16384", proxy.SNAT{Mark: proxy.Mark{Value: 0x4000, Mask: 0x4000}}},
		{"--masquerade-mark 0x1/0xff", proxy.SNAT{Mark: proxy.Mark{Value: 1, Mask: 0xff}}},
	} {
		got, err := policy(t, row.args)
		if got, want := fmt.Sprintf("%+v", got), fmt.Sprintf("%+v", row.want); err != nil || got != want {
			t.Errorf("%s: %s, %v; want %s", row.args, got, err, want)
		}
		if err := (proxy.State{Node: "n1", SNAT: got}).Validate(); err != nil {
			t.Errorf("%s: the proxy refuses it: %v", row.args, err)
		}
	}
}

func TestSNATMistakesAreNamed(t *testing.T) {
	for args, want := range map[string]string{
		"--snat-ports none":                      `--snat-ports "none": want fully-random, random or keep`,
		"--snat-sources 192.0.2.1,192.0.2.2":     `--snat-sources "192.0.2.2": 192.0.2.2 is of the same family as 192.0.2.1; give one of each`,
		"--snat-sources fe80::1%eth0":            "without a zone",
		"--snat-sources ::ffff:192.0.2.1":        "an address of this node",
		"--snat-sources 127.0.0.1":               "that others can send to",
		"--snat-sources no-such-if":              "no such interface",
		"--snat-sources lo":                      "no address that others can send to",
		"--snat-never-cidrs 10.0.0.0":            `--snat-never-cidrs "10.0.0.0": want a prefix such as`,
		"--snat-never-cidrs ::ffff:10.0.0.0/104": "want a prefix such as",
		"--masquerade-mark mark":                 "such as 0x4000/0x4000",
		"--masquerade-mark 0":                    "above zero",
		"--masquerade-mark 0x100000000":          "32 bits",
		"--masquerade-mark 0x6000/0x4000":        "want a mask such as 0x6000",
		"--masquerade-mark 0x4000/0x4000/0x4000": "such as 0x4000/0x4000",
	} {
		if _, err := policy(t, args); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q in it", args, err, want)
		}
	}
}

// An interface stands for its primary address of each family.
func TestSNATSourceIsAnInterface(t *testing.T) { nstest.Run(t, interfaceAsSource) }

func interfaceAsSource(t *testing.T) {
	a, b := nstest.Node(t), nstest.New(t, "b")
	nstest.Link(t, a, "eth0", b, "eth0")
	a.Addr("eth0", "192.0.2.1/24", "192.0.2.2/24", "2001:db8::1/64")
	got, err := policy(t, "--snat-sources eth0")
	want := []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}
	if err != nil || !reflect.DeepEqual(got.Sources, want) {
		t.Errorf("%v, %v; want %v", got.Sources, err, want)
	}
}
