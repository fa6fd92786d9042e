package v1alpha1

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	"github.com/fanfare-lb/fanfare/internal/testing/crdtest"
)

// A validator does with an object what the API server does.
type validator struct{ crdtest.Validator }

func loadCRD(t *testing.T, plural string) validator {
	t.Helper()
	return validator{crdtest.Load(t, plural)}
}

func (v validator) check(t *testing.T, spec string) (map[string]any, field.ErrorList) {
	t.Helper()
	obj := object(t, "x", spec)
	return obj, v.Create(obj)
}

// object is an object as the API server decodes it.
func object(t *testing.T, name, spec string) map[string]any {
	t.Helper()
	var s map[string]any
	if err := yaml.Unmarshal([]byte(spec), &s); err != nil {
		t.Fatal(err)
	}
	return map[string]any{"metadata": map[string]any{"name": name}, "spec": crdtest.Integers(s)}
}

// A specTest is a spec and a part of what the API server must say to it; empty
// when it must be content.
type specTest struct{ spec, want string }

func (v validator) run(t *testing.T, tests []specTest) {
	for _, tt := range tests {
		_, errs := v.check(t, tt.spec)
		switch {
		case tt.want == "" && len(errs) != 0:
			t.Errorf("%s: %v, want no error", tt.spec, errs.ToAggregate())
		case tt.want != "" && len(errs) == 0:
			t.Errorf("%s: no error, want %q", tt.spec, tt.want)
		case tt.want != "" && !strings.Contains(errs.ToAggregate().Error(), tt.want):
			t.Errorf("%s: %v, want %q", tt.spec, errs.ToAggregate(), tt.want)
		}
	}
}

func TestAddressPoolCRD(t *testing.T) {
	v := loadCRD(t, "addresspools")
	v.run(t, []specTest{
		{`{announce: BGP, addresses: [192.0.2.0/26]}`, ""},
		{`{announce: BGP, addresses: [192.0.2.10-192.0.2.50, 2001:db8::/120, 192.0.2.7, "2001:db8:1::1 - 2001:db8:1::ff"]}`, ""},
		{`{announce: BGP, addresses: [192.0.2.0/26], allocation: Drained, avoidBuggyIPs: true}`, ""},
		{`{announce: BGP, addresses: [192.0.2.0/26], priority: -5, namespaces: [shop, web-2], namespaceSelector: {matchLabels: {team: a}}, serviceSelector: {}, namespaceQuota: 3}`, ""},
		{`{announce: BGP, addresses: [192.0.2.0/26], namespaces: []}`, "should have at least 1 items"},
		{`{announce: BGP, addresses: [192.0.2.0/26], namespaces: [Shop]}`, "spec.namespaces[0]"},
		{`{announce: BGP, addresses: [192.0.2.0/26], namespaces: [""]}`, "spec.namespaces[0]"},
		{`{announce: BGP, addresses: [192.0.2.0/26], namespaceQuota: 0}`, "should be greater than or equal to 1"},
		{`{announce: BGP, addresses: [192.0.2.0/26], priority: high}`, "must be of type integer"},
		{`{announce: BGP, addresses: [192.0.2.0/26], priority: 2147483648}`, "spec.priority"},
		{`{announce: BGP, addresses: [192.0.2.0/26], serviceSelector: {matchExpressions: [{key: a}]}}`,
			"operator: Required value"},
		{`{}`, "spec.addresses: Required value"},
		{`{announce: BGP, addresses: []}`, "should have at least 1 items"},
		{`{announce: BGP, addresses: [""]}`, "should be at least 2 chars long"},
		{`{announce: BGP, addresses: [192.0.2.0/33]}`, "each must be a CIDR"},
		{`{announce: BGP, addresses: [192.0.2.0-]}`, "each must be a CIDR"},
		{`{announce: BGP, addresses: [192.0.2.1-192.0.2.2-192.0.2.3]}`, "each must be a CIDR"},
		{`{announce: BGP, addresses: [lan]}`, "each must be a CIDR"},
		{`{announce: BGP, addresses: ["::ffff:192.0.2.1"]}`, "each must be a CIDR"},
		{`{announce: BGP, addresses: ["fe80::1%eth0"]}`, "each must be a CIDR"},
		{`{announce: BGP, addresses: [192.0.2.10/26]}`, "begin at its network's first address"},
		{`{announce: BGP, addresses: ["192.0.2.1-2001:db8::1"]}`, "one address family"},
		{`{announce: BGP, addresses: [192.0.2.0/26], allocation: Manual}`, "Unsupported value"},
		{`{announce: BGP, addresses: 192.0.2.0/26}`, "must be of type array"},
	})
}

func TestAddressClaimCRD(t *testing.T) {
	v := loadCRD(t, "addressclaims")
	for _, tt := range []struct{ name, spec, want string }{
		{"192.0.2.10", `{address: 192.0.2.10}`, ""},
		{"192.0.2.10", `{address: 192.0.2.10, pool: lan, holders: [{namespace: shop, name: web, uid: u, resourceVersion: "7"}], node: node1, reserved: true}`, ""},
		{"192.0.2.11", `{address: 192.0.2.10}`, "metadata.name must be spec.address"},
		{"2001:db8::10", `{address: "2001:db8::10"}`, "metadata.name must be spec.address"},
		{"2001-db8--10", `{address: "2001:DB8::10"}`, "canonical form"},
		{"192.0.2.10", `{address: 192.0.2.10/32}`, "canonical form"},
		{"fe80--1", `{address: "fe80::1%eth0"}`, "canonical form"},
		{"x", `{}`, "spec.address: Required value"},
		{"192.0.2.10", `{address: 192.0.2.10, holders: [{name: web}]}`, "holders[0].namespace: Required value"},
	} {
		errs := v.Create(object(t, tt.name, tt.spec))
		if (len(errs) == 0) != (tt.want == "") ||
			len(errs) != 0 && !strings.Contains(errs.ToAggregate().Error(), tt.want) {
			t.Errorf("%s %s: %v, want %q", tt.name, tt.spec, errs.ToAggregate(), tt.want)
		}
	}
	// The API server and ClaimName agree on every name, but for addresses that no
	// Service can have.
	reserved := []string{"::ffff:192.0.2.1", "0.0.0.0", "255.255.255.255", "::1", "::", "fe80::1:0:0:1"}
	for _, tt := range claimNames {
		want := !slices.Contains(reserved, tt.addr)
		errs := v.Create(object(t, tt.name, `{address: "`+tt.addr+`"}`))
		if got := len(errs) == 0; got != want {
			t.Errorf("%s: %v", tt.addr, errs.ToAggregate())
		}
	}
	was := object(t, "0--3", `{address: "::3"}`)
	if errs := v.Update(object(t, "0--3", `{address: "::3", reserved: true}`), was); len(errs) != 0 {
		t.Error(errs.ToAggregate())
	}
	if errs := v.Update(object(t, "0--2", `{address: "::2"}`), was); len(errs) == 0 ||
		!strings.Contains(errs.ToAggregate().Error(), "cannot be changed") {
		t.Errorf("the address was changed: %v", errs.ToAggregate())
	}
}

func TestBGPPeerCRD(t *testing.T) {
	v := loadCRD(t, "bgppeers")
	const ok = `peerAddress: 192.0.2.1, peerASN: 64512, myASN: 64513`
	v.run(t, []specTest{
		{`{` + ok + `}`, ""},
		{`{peerAddress: "2001:db8::1", peerASN: internal, myASN: 4294967294, sourceAddress: "2001:db8::2", routerID: 192.0.2.2}`, ""},
		{`{peerAddress: "fe80::1%eth0", peerASN: 4200000000, myASN: 1, sourceAddress: "fe80::2"}`, ""},
		{`{` + ok + `, holdTime: 3s, keepaliveTime: 1s, connectTime: 1m30s, ebgpMultihopTTL: 4, peerPort: 1790}`, ""},
		{`{` + ok + `, nodeSelector: {matchLabels: {rack: a}}, gracefulRestart: {enabled: false}}`, ""},
		{`{peerAddress: 192.0.2.1, peerASN: external, myASN: 64513, localASN: 64514, sourceAddress: bond0.100, ttlSecurityHops: 1}`, ""},
		{`{peerAddress: 192.0.2.1, peerASN: external, myASN: 64513, ebgpMultihopTTL: 2}`, ""},
		{`{` + ok + `, weightByEndpoints: true}`, ""},
		{`{` + ok + `, weightByEndpoints: 3}`, "must be of type boolean"},
		{`{` + ok + `, localASN: 23456}`, "write the real AS number"},
		{`{` + ok + `, localASN: 64512, ebgpMultihopTTL: 2}`, "our own AS number"},
		{`{` + ok + `, passwordSecretRef: {name: tor1}}`, ""},
		{`{` + ok + `, passwordSecretRef: {}}`, "passwordSecretRef.name: Required value"},
		{`{` + ok + `, passwordSecretRef: {name: ""}}`, "at least 1 chars long"},
		{`{` + ok + `, bfd: {}, ttlSecurityHops: 1}`, ""},
		{`{` + ok + `, device: red, passive: true}`, ""},
		{`{` + ok + `, device: "eth 0"}`, "name of an interface or a VRF"},
		{`{` + ok + `, device: sixteen-letters-}`, "may not be more than 15"},
		{`{` + ok + `, bfd: {transmitInterval: 50ms, receiveInterval: 1s500ms, detectMultiplier: 5, passive: true}}`,
			""},
		{`{` + ok + `, bfd: {transmitInterval: 5ms}}`, "from 10ms to 60s"},
		{`{` + ok + `, bfd: {receiveInterval: 61s}}`, "from 10ms to 60s"},
		{`{` + ok + `, bfd: {receiveInterval: 1m}}`, "should match"},
		{`{` + ok + `, bfd: {detectMultiplier: 1}}`, "greater than or equal to 2"},
		{`{` + ok + `, bfd: {}, ebgpMultihopTTL: 2}`, "directly connected"},
		{`{` + ok + `, ttlSecurityHops: 255}`, "less than or equal to 254"},
		{`{` + ok + `, ttlSecurityHops: 1, ebgpMultihopTTL: 2}`, "remove it or ebgpMultihopTTL"},
		{`{peerASN: 64512, myASN: 64513}`, "name the router by one of peerAddress, defaultGateway and interface"},
		{`{` + ok + `, defaultGateway: IPv4}`, "name the router by one of peerAddress, defaultGateway and interface"},
		{`{defaultGateway: IPv4, peerASN: external, myASN: 64513, sourceAddress: 192.0.2.7}`, ""},
		{`{defaultGateway: IPv6, peerASN: external, myASN: 64513, sourceAddress: eth0}`, ""},
		{`{defaultGateway: IPv6, peerASN: external, myASN: 64513, sourceAddress: 192.0.2.7}`,
			"defaultGateway's address family"},
		{`{defaultGateway: ipv6, peerASN: external, myASN: 64513}`, "Unsupported value"},
		{`{` + ok + `, interface: eth1}`, "name the router by one of peerAddress, defaultGateway and interface"},
		{`{interface: "eth1%2", peerASN: external, myASN: 64513}`, "must be the name of an interface"},
		{`{interface: eth1, sourceAddress: eth1, peerASN: external, myASN: 64513}`, "remove sourceAddress"},
		{`{interface: eth1, passive: true, peerASN: external, myASN: 64513}`, "remove passive"},
		{`{interface: eth1, ebgpMultihopTTL: 2, peerASN: external, myASN: 64513}`, "remove ebgpMultihopTTL"},
		{`{interface: bond0.100, peerASN: external, myASN: 64513, ttlSecurityHops: 1, bfd: {}}`, ""},
		{`{defaultGateway: IPv4, interface: eth1, peerASN: external, myASN: 64513}`,
			"name the router by one of peerAddress, defaultGateway and interface"},
		{`{peerAddress: router, peerASN: 64512, myASN: 64513}`, "must be an address such as 192.0.2.1"},
		{`{peerAddress: "fe80::1", peerASN: 64512, myASN: 64513}`, "needs its interface"},
		{`{peerAddress: "fe80::1%", peerASN: 64512, myASN: 64513}`, "needs its interface"},
		{`{peerAddress: "192.0.2.1%eth0", peerASN: 64512, myASN: 64513}`, "needs its interface"},
		{`{peerAddress: 192.0.2.1, peerASN: 0, myASN: 64513}`, "must be a number from 1"},
		{`{peerAddress: 192.0.2.1, peerASN: 4294967296, myASN: 64513}`, "must be a number from 1"},
		{`{peerAddress: 192.0.2.1, peerASN: outside, myASN: 64513}`, "or internal or external"},
		{`{peerAddress: 192.0.2.1, peerASN: true, myASN: 64513}`, "spec.peerASN"},
		{`{peerAddress: 192.0.2.1, peerASN: 64512, myASN: 23456}`, "write the real AS number"},
		{`{peerAddress: 192.0.2.1, peerASN: 64512}`, "spec.myASN: Required value"},
		{`{` + ok + `, peerPort: 65536}`, "less than or equal to 65535"},
		{`{` + ok + `, holdTime: 2s}`, "from 3s to 65535s"},
		{`{` + ok + `, holdTime: 19h}`, "from 3s to 65535s"},
		{`{` + ok + `, holdTime: 3500ms}`, "should match"},
		{`{` + ok + `, holdTime: 90}`, "must be of type string"},
		{`{` + ok + `, holdTime: 9s, keepaliveTime: 9s}`, "must be less than holdTime"},
		{`{` + ok + `, keepaliveTime: 90s}`, "must be less than holdTime"},
		{`{` + ok + `, connectTime: ""}`, "must be from 1s"},
		{`{` + ok + `, ebgpMultihopTTL: 256}`, "less than or equal to 255"},
		{`{peerAddress: 192.0.2.1, peerASN: internal, myASN: 64513, ebgpMultihopTTL: 2}`, "this peer is internal"},
		{`{peerAddress: 192.0.2.1, peerASN: 64513, myASN: 64513, ebgpMultihopTTL: 2}`, "our own AS number"},
		{`{` + ok + `, sourceAddress: "2001:db8::2"}`, "peerAddress's address family"},
		{`{` + ok + `, sourceAddress: "eth 0"}`, "or the name of an interface"},
		{`{` + ok + `, sourceAddress: 192.0.2.256}`, "or the name of an interface"},
		{`{` + ok + `, routerID: "2001:db8::2"}`, "must be written as an IPv4 address"},
		{`{` + ok + `, routerID: 0.0.0.0}`, "must be written as an IPv4 address"},
		{`{` + ok + `, gracefulRestart: {restartTime: 4096s}}`, "12 bits"},
		{`{` + ok + `, gracefulRestart: {restartTime: 1s}}`, "from 2s"},
	})
}

func TestBGPAdvertisementCRD(t *testing.T) {
	loadCRD(t, "bgpadvertisements").run(t, []specTest{
		{`{}`, ""},
		{`{pools: [lan, wan], peers: [tor1], aggregationLength: 0, aggregationLengthV6: 0}`, ""},
		{`{serviceSelector: {matchLabels: {a: b}}, nodeSelector: {}, aggregationLength: 32, aggregationLengthV6: 128}`,
			""},
		{`{pools: []}`, "at least 1 items"},
		{`{pools: ["192.0.2.0/24"]}`, "must be the name of an AddressPool"},
		{`{peers: [Tor1]}`, "must be the name of a BGPPeer"},
		{`{aggregationLength: 33}`, "less than or equal to 32"},
		{`{aggregationLength: -1}`, "greater than or equal to 0"},
		{`{aggregationLengthV6: 129}`, "less than or equal to 128"},
		{`{aggregationLength: "24"}`, "must be of type integer"},
		{`{communities: ["0:0", "65535:65535", "64500:1:2", "large:64500:1:2", "4294967294:4294967295:4294967295"], localPref: 0, med: 4294967295, asPathPrepend: 16}`, ""},
		{`{communities: [graceful-shutdown, accept-own, no-llgr, blackhole, no-export, no-advertise, local-as, no-peer]}`, ""},
		{`{communities: ["65536:1"]}`, "must be two numbers up to 65535"},
		{`{communities: ["1:2:4294967296"]}`, "or three up to 4294967295"},
		{`{communities: ["4294967295:1:1"]}`, "which RFC 7300 reserves"},
		{`{communities: ["large:1:2"]}`, "must be two numbers"},
		{`{communities: ["65535:6"]}`, "and not LLGR_STALE"},
		{`{communities: [noexport]}`, "or one of accept-own"},
		{`{communities: [""]}`, "must be two numbers"},
		{`{communities: [65001]}`, "must be of type string"},
		{`{localPref: -1}`, "greater than or equal to 0"},
		{`{med: 4294967296}`, "less than or equal to 4294967295"},
		{`{asPathPrepend: 17}`, "less than or equal to 16"},
	})
}

func TestL2AdvertisementCRD(t *testing.T) {
	loadCRD(t, "l2advertisements").run(t, []specTest{
		{`{}`, ""},
		{`{pools: [lan, wan], serviceSelector: {matchLabels: {a: b}}, nodeSelector: {}, interfaces: [eth0, "bond*", "ens?f0", br-lan, eth0.100, "*"]}`, ""},
		{`{preferredNodeSelectors: [{weight: 1, preference: {matchLabels: {rack: a}}}, {weight: 100, preference: {}}]}`,
			""},
		{`{pools: []}`, "at least 1 items"},
		{`{pools: ["192.0.2.0/24"]}`, "must be the name of an AddressPool"},
		{`{interfaces: []}`, "at least 1 items"},
		{`{interfaces: ["eth 0"]}`, "must be the name of an interface"},
		{`{interfaces: ["eth[01]"]}`, "must be the name of an interface"},
		{`{interfaces: ["eth0:1"]}`, "must be the name of an interface"},
		{`{interfaces: ['eth\0']}`, "must be the name of an interface"},
		{`{interfaces: ["192.0.2.0/24"]}`, "must be the name of an interface"},
		{`{interfaces: [".."]}`, "must be the name of an interface"},
		{`{interfaces: [""]}`, "at least 1 char"},
		{`{interfaces: [abcdefghijklmnop]}`, "may not be more than 15"},
		{`{preferredNodeSelectors: [{weight: 0, preference: {}}]}`, "greater than or equal to 1"},
		{`{preferredNodeSelectors: [{weight: 101, preference: {}}]}`, "less than or equal to 100"},
		{`{preferredNodeSelectors: [{weight: 1}]}`, "preference"},
		{`{preferredNodeSelectors: []}`, "at least 1 items"},
	})
}

func TestDefaults(t *testing.T) {
	pool, _ := loadCRD(t, "addresspools").check(t, `{addresses: [192.0.2.0/26]}`)
	if got := pool["spec"].(map[string]any)["allocation"]; got != "Automatic" {
		t.Errorf("allocation %v, want Automatic", got)
	}
	peer, _ := loadCRD(t, "bgppeers").check(t,
		`{peerAddress: 192.0.2.1, peerASN: 64512, myASN: 64513, gracefulRestart: {}}`)
	want := map[string]any{
		"peerAddress": "192.0.2.1", "peerPort": int64(179), "peerASN": int64(64512), "myASN": int64(64513),
		"gracefulRestart": map[string]any{"enabled": true, "restartTime": "30s"},
	}
	if got := peer["spec"]; !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// The samples are what a newcomer applies first: the API server must take them.
func TestSamplesPassTheCRDs(t *testing.T) {
	plurals := map[string]string{
		"AddressPool": "addresspools", "BGPPeer": "bgppeers", "BGPAdvertisement": "bgpadvertisements",
		"L2Advertisement": "l2advertisements",
	}
	files, err := filepath.Glob(filepath.Join("..", "..", "manifests", "samples", "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	checked := map[string]bool{}
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for doc := range strings.SplitSeq(string(b), "\n---\n") {
			var obj struct {
				Kind string
				Spec map[string]any
			}
			if err := yaml.Unmarshal([]byte(doc), &obj); err != nil {
				t.Fatal(err)
			}
			plural, ours := plurals[obj.Kind]
			if !ours {
				continue
			}
			spec, err := yaml.Marshal(obj.Spec)
			if err != nil {
				t.Fatal(err)
			}
			checked[plural] = true
			if _, errs := loadCRD(t, plural).check(t, string(spec)); len(errs) != 0 {
				t.Errorf("%s: %v", name, errs.ToAggregate())
			}
		}
	}
	if len(checked) != len(plurals) {
		t.Errorf("samples of %v, want one of each of %v", checked, plurals)
	}
}

func TestScheme(t *testing.T) {
	s := runtime.NewScheme()
	if err := AddToScheme(s); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"AddressClaim", "AddressClaimList", "AddressPool", "AddressPoolList",
		"BGPAdvertisement", "BGPAdvertisementList", "BGPPeer", "BGPPeerList", "L2Advertisement",
		"L2AdvertisementList"} {
		if !s.Recognizes(GroupVersion.WithKind(kind)) {
			t.Errorf("the scheme does not know %s", kind)
		}
	}
}

func TestPeerASN(t *testing.T) {
	for _, tt := range []struct {
		in   string
		want PeerASN
		err  string
	}{
		{`64512`, PeerASN{Number: 64512}, ""},
		{`4294967295`, PeerASN{Number: MaxASN}, ""},
		{`"internal"`, PeerASN{Internal: true}, ""},
		{`"external"`, PeerASN{External: true}, ""},
		{`"outside"`, PeerASN{}, `or "internal" or "external"`},
		{`"64512"`, PeerASN{}, "without quotes"},
		{`1.5`, PeerASN{}, "must be a number"},
		{`[1]`, PeerASN{}, "must be a number"},
	} {
		var got PeerASN
		err := yaml.Unmarshal([]byte(tt.in), &got)
		if got != tt.want || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%s: got %v, %v, want %v, %q", tt.in, got, err, tt.want, tt.err)
		}
		if err != nil {
			continue
		}
		if b, err := got.MarshalJSON(); err != nil || string(b) != tt.in {
			t.Errorf("%s: written as %s, %v", tt.in, b, err)
		}
	}
}

var (
	_ runtime.Object = (*AddressPool)(nil)
	_ runtime.Object = (*BGPPeer)(nil)
	_ metav1.Object  = (*BGPPeer)(nil)
)
