package cluster

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
	"github.com/fanfare-lb/fanfare/internal/testing/clustertest"
)

// A range that is accepted has an order, one family, nothing reserved, and reads
// the same when it is written out.
func FuzzParseRange(f *testing.F) {
	for _, s := range []string{
		"192.0.2.0/26", "192.0.2.1-192.0.2.9", " 192.0.2.1 - 192.0.2.9 ", "192.0.2.1", "2001:db8::/32",
		"2001:db8::-2001:db8::ff", "192.0.2.9-192.0.2.1", "192.0.2.1-2001:db8::1", "0.0.0.0/0", "::/0",
		"::ffff:192.0.2.0/120", "fe80::1%eth0-fe80::2", "1-2-3", "-", "/",
		"192.0.2.0/-1", "192.0.2.0/032", "0:0:0:0:0:ffff:c000:201-::ffff:c000:209",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := parseRange(s)
		if err != nil {
			return
		}
		if !r.IsValid() || r.From().Is4() != r.To().Is4() || r.From().Zone() != "" || r.From().Is4In6() {
			t.Errorf("%q became %v", s, r)
		}
		if what := reservedIn(r); what != "" {
			t.Errorf("%q has %s addresses", s, what)
		}
		if again, err := parseRange(r.String()); err != nil || again != r {
			t.Errorf("%q became %v, and that %v, %v", s, r, again, err)
		}
		if rest := without(r, []netipx.IPRange{netipx.IPRangeFrom(r.From(), r.From())}); slices.ContainsFunc(rest,
			func(q netipx.IPRange) bool { return q.Contains(r.From()) }) {
			t.Errorf("%v without its first address is %v", r, rest)
		}
	})
}

// For any eligibility: a part with a Problem admits no Service, and a valid part admits what it
// names.
func FuzzParseEligibility(f *testing.F) {
	f.Add("shop", "team", "a", "tier", "In", "public", int32(3), "shop", "public")
	f.Add("", "", "", "", "", "", int32(-1), "", "")
	f.Add("Shop", "a/b/c", "-", "x", "Exists", "y", int32(1<<31-1), "dev", "x y")
	f.Fuzz(func(t *testing.T, namespace, key, value, serviceKey, operator, serviceValue string, quota int32, ns,
		label string) {
		o := clustertest.Pool("lan", "192.0.2.0/24")
		o.Spec.Namespaces = []string{namespace}
		o.Spec.NamespaceSelector = &v1alpha1.LabelSelector{
			MatchLabels: map[string]v1alpha1.LabelValue{key: v1alpha1.LabelValue(value)}}
		o.Spec.ServiceSelector = &v1alpha1.LabelSelector{MatchExpressions: []v1alpha1.LabelSelectorRequirement{
			{Key: serviceKey, Operator: metav1.LabelSelectorOperator(operator), Values: []string{serviceValue}}}}
		o.Spec.NamespaceQuota = quota
		p, problems := parsePool(o)
		if p.Quota < 0 || p.Quota != int(quota) && len(problems) == 0 {
			t.Errorf("quota %d became %d", quota, p.Quota)
		}
		s := &Spec{Name: Name{Namespace: ns, Name: "a"}, Labels: map[string]string{serviceKey: label}}
		n, _ := parseNamespace(clustertest.Namespace(ns, "x"))
		n.Labels[key] = value
		known := []*Namespace{n}
		why := p.Excludes(s, known)
		for _, problem := range problems {
			if strings.Contains(problem.Field, "elector") && why == "" {
				t.Errorf("%s, and it lets pass", problem)
			}
		}
		if ns != namespace && why == "" {
			t.Errorf("a pool for %q admits %q", namespace, ns)
		}
		if len(problems) == 0 && ns == namespace && operator == "In" && label == serviceValue && why != "" {
			t.Errorf("it %s", why)
		}
		if p.Excludes(s, nil) == "" {
			t.Error("who knows no Namespaces lets pass")
		}
	})
}

// Addresses that are accepted are sorted, different, and addresses that a
// Service can have; what is not accepted is named.
func FuzzParseAddrs(f *testing.F) {
	for _, s := range []string{"192.0.2.1", "2001:db8::1, 192.0.2.1", ",,192.0.2.1,192.0.2.1 ,", "", "::ffff:192.0.2.1",
		"fe80::1%eth0", "0.0.0.0", "a,b", "::10,0.0.0.10", "::", "::1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		addrs, bad := parseAddrs(s)
		if !slices.IsSortedFunc(addrs, func(a, b netip.Addr) int {
			if a == b {
				return 1
			}
			return a.Compare(b)
		}) {
			t.Errorf("%q became %v", s, addrs)
		}
		for _, a := range addrs {
			if assignable(a) != nil && !IsHostPart(a) || a.Zone() != "" {
				t.Errorf("%q has %v", s, a)
			}
		}
		if len(addrs) == 0 && bad == "" && strings.Trim(s, ", \t\n\v\f\r\u0085\u00a0") != "" &&
			len(strings.Fields(strings.ReplaceAll(s, ",", " "))) != 0 {
			t.Errorf("%q is nothing and nothing is wrong with it", s)
		}
	})
}

// For any Service, parsing ends, and a Problem names everything that it
// ignores.
func FuzzParseService(f *testing.F) {
	f.Add("192.0.2.1", "192.0.2.1", "lan", "192.0.2.1", "IPv4", "RequireDualStack", int32(80), "TCP")
	f.Add("a,b", "", "", "::", "", "", int32(0), "")
	f.Add("::ffff:1.2.3.4", "2001:db8::1", "x", "fe80::1%a", "IPv6", "x", int32(-1), "icmp")
	f.Fuzz(func(t *testing.T, ours, metallb, pool, status, family, policy string, port int32, protocol string) {
		o := clustertest.Service("a", status)
		o.Annotations = map[string]string{
			addressAnnotations[0]: ours, addressAnnotations[1]: metallb, poolAnnotations[2]: pool,
		}
		o.Spec.IPFamilies = []corev1.IPFamily{corev1.IPFamily(family)}
		o.Spec.IPFamilyPolicy = new(corev1.IPFamilyPolicy(policy))
		o.Spec.Ports = []corev1.ServicePort{{Port: port, Protocol: corev1.Protocol(protocol)}}
		s, p := parseService(o, Classes{})
		if len(s.IPFamilies) == 0 || len(s.IPFamilies) > 2 || s.IPFamilyPolicy == "" {
			t.Errorf("families %v, policy %q", s.IPFamilies, s.IPFamilyPolicy)
		}
		if len(s.Ports) == 0 && len(p) == 0 {
			t.Errorf("port %d/%s vanished", port, protocol)
		}
		if len(s.Status) == 0 && status != "" && len(p) == 0 {
			t.Errorf("status %q vanished", status)
		}
	})
}

// For any annotations for addresses: pools can answer the request, a key is never
// empty, and a contradiction is a Problem.
func FuzzParseRequest(f *testing.F) {
	f.Add("192.0.2.1,::10", "::10", "a, b", "lan", "k", "m", "dev, shop", "true")
	f.Add("0.0.0.0", "", ",", " ", "", "m", "dev", "yes")
	f.Fuzz(func(t *testing.T, ours, theirs, pools, theirPool, key, theirKey, namespaces, reserve string) {
		o := clustertest.Service("a", "")
		o.Annotations = map[string]string{
			addressAnnotations[0]: ours, addressAnnotations[1]: theirs, poolAnnotations[0]: pools,
			poolAnnotations[2]: theirPool, sharingAnnotations[0]: key, sharingAnnotations[1]: theirKey,
			SharingNamespacesAnnotation: namespaces, ReserveAnnotation: reserve,
		}
		s, p := parseService(o, Classes{})
		for _, a := range s.Requested {
			if !IsHostPart(a) && assignable(a) != nil {
				t.Errorf("asks for %s", a)
			}
		}
		for _, name := range s.RequestedPools {
			if name == "" || strings.ContainsAny(name, ",") || strings.TrimSpace(name) != name {
				t.Errorf("asks for pool %q", name)
			}
		}
		if s.Sharing != nil && (s.Sharing.Key == "" || !slices.IsSorted(s.Sharing.Namespaces) ||
			slices.Contains(s.Sharing.Namespaces, o.Namespace)) {
			t.Errorf("shares by %+v", s.Sharing)
		}
		if (s.Sharing == nil) != (strings.TrimSpace(key) == "" && strings.TrimSpace(theirKey) == "") {
			t.Errorf("keys %q and %q are %+v", key, theirKey, s.Sharing)
		}
		for i, bad := range s.Problems {
			if bad.Code == "" || bad.Clause() != p[i].Clause() {
				t.Errorf("%q has code %q, and is %q", bad.Clause(), bad.Code, p[i].Clause())
			}
		}
	})
}

// A peer that is accepted has what a session needs.
func FuzzParsePeer(f *testing.F) {
	f.Add("192.0.2.1", int64(64512), int64(64513), int64(90e9), int64(30e9), int32(179), int32(0), "", "")
	f.Add("fe80::1%eth0", int64(0), int64(4294967296), int64(-1), int64(0), int32(-1), int32(256), "::1", "0.0.0.0")
	f.Fuzz(func(t *testing.T, addr string, peerASN, myASN, hold, keepalive int64, port, ttl int32, source, id string) {
		o := &v1alpha1.BGPPeer{Spec: v1alpha1.BGPPeerSpec{
			PeerAddress: addr, PeerPort: port, PeerASN: v1alpha1.PeerASN{Number: peerASN}, MyASN: myASN,
			SourceAddress: source, RouterID: id, HoldTime: &metav1.Duration{Duration: time.Duration(hold)},
			KeepaliveTime:   &metav1.Duration{Duration: time.Duration(keepalive)},
			EBGPMultihopTTL: ttl,
		}}
		p, problems := parsePeer(o)
		if (p == nil) != (len(problems) != 0) {
			t.Fatalf("peer %v, problems %v", p, problems)
		}
		if p == nil {
			return
		}
		if !p.PeerAddress.IsValid() || p.PeerPort == 0 || (p.PeerASN == 0) != p.External || p.MyASN == 0 ||
			p.HoldTime < 3*time.Second || p.KeepaliveTime >= p.HoldTime {
			t.Errorf("peer %+v", p)
		}
		if p.SourceAddress.IsValid() && p.SourceAddress.BitLen() != p.PeerAddress.BitLen() {
			t.Errorf("peer %+v", p)
		}
	})
}

// An advertisement that is accepted announces an address by a prefix that holds
// it and is no shorter than was asked for.
func FuzzParseAdvertisement(f *testing.F) {
	f.Add("lan", "tor1", int32(24), int32(64), "a", "In", "b")
	f.Add("", "", int32(-1), int32(129), "/", "Near", "")
	f.Fuzz(func(t *testing.T, pool, peer string, length4, length6 int32, key, operator, value string) {
		selector := &v1alpha1.LabelSelector{MatchExpressions: []v1alpha1.LabelSelectorRequirement{
			{Key: key, Operator: metav1.LabelSelectorOperator(operator), Values: []string{value}}}}
		spec := v1alpha1.BGPAdvertisementSpec{
			Pools: []string{pool}, Peers: []string{peer}, NodeSelector: selector, AggregationLength: &length4,
			AggregationLengthV6: &length6,
		}
		a, problems := parseAdvertisement(&v1alpha1.BGPAdvertisement{Spec: spec})
		spec.ServiceSelector = selector
		if selected, _ := parseAdvertisement(&v1alpha1.BGPAdvertisement{Spec: spec}); selected != nil &&
			(length4 < 32 || length6 < 128) {
			t.Errorf("lengths %d and %d beside a serviceSelector", length4, length6)
		}
		if (a == nil) != (len(problems) != 0) {
			t.Fatalf("advertisement %v, problems %v", a, problems)
		}
		if a == nil {
			return
		}
		for addr, length := range map[string]int32{"192.0.2.5": length4, "2001:db8::5": length6} {
			addr := netip.MustParseAddr(addr)
			if p := a.Prefix(addr); !p.Contains(addr) || p.Bits() != int(length) || p != p.Masked() {
				t.Errorf("%s is announced by %s, want length %d", addr, p, length)
			}
		}
		if len(a.Peers) != 1 || !a.SelectsPool(pool) || a.SelectsPool(pool+"x") {
			t.Errorf("advertisement %+v", a)
		}
	})
}

// What a community is, is one community, and what is none has words that say what one
// is.
func FuzzParseCommunity(f *testing.F) {
	for _, seed := range []string{"64500:1", "large:1:2:3", "no-export", "::", "large:", "65536:0", "4294967295:1:1",
		" 1:1"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var c Communities
		err := c.parse(text)
		if n := len(c.Standard) + len(c.Large); err == nil && n != 1 ||
			err != nil && (n != 0 || !strings.Contains(err.Error(), " ")) {
			t.Errorf("%q: %+v, %v", text, c, err)
		}
	})
}
