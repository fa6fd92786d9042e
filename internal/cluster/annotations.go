package cluster

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Annotations by which a Service asks for addresses, in order of precedence.
// MetalLB's are honoured, so that users need not edit Services to migrate. What
// it writes itself, ip-allocated-from-pool, says nothing that is not in the status.
var (
	// addressAnnotations of a Service: the addresses that it requests, separated by commas. The
	// AddressPool must admit the Service: `namespaces`, `namespaceSelector`, `serviceSelector`,
	// `namespaceQuota`.
	addressAnnotations = []string{
		"fanfare.io/load-balancer-ips",
		"metallb.io/loadBalancerIPs",
		"metallb.universe.tf/loadBalancerIPs",
	}
	// poolAnnotations of a Service: the AddressPool to get addresses from, which must admit the
	// Service: `namespaces`, `namespaceSelector`, `serviceSelector`, `namespaceQuota`.
	poolAnnotations = []string{
		"fanfare.io/address-pool",
		"metallb.io/address-pool",
		"metallb.universe.tf/address-pool",
	}
	// sharingAnnotations of a Service: the key, as `fanfare.io/allow-shared-ip`, which takes precedence.
	sharingAnnotations = []string{
		SharingAnnotation,
		"metallb.io/allow-shared-ip",
		"metallb.universe.tf/allow-shared-ip",
	}
)

const (
	// SharingAnnotation of a Service: a key. Services with the same key may share an address.
	// Services of different namespaces must also name each other's namespace.
	SharingAnnotation = "fanfare.io/allow-shared-ip"
	// SharingNamespacesAnnotation of a Service: other namespaces whose Services may share its
	// address, separated by commas. MetalLB has none: there a key is valid in all namespaces.
	SharingNamespacesAnnotation = "fanfare.io/allow-shared-ip-namespaces"
	// ReserveAnnotation of a Service: `true` keeps its addresses reserved after it is deleted, as
	// far as `namespaceReservedQuota` of the AddressPool permits, by default 4.
	ReserveAnnotation = "fanfare.io/reserve"
)

// Limits for the requests of one Service. ResourceQuotas count Services: one Service must not take
// a whole pool, or much time on every node that parses it.
const (
	maxRequested         = 16  // addresses
	maxListed            = 256 // entries of a list of them, with repetitions
	maxRequestedPools    = 16
	maxSharingNamespaces = 64
)

// Sharing says which Services a Service shares its addresses with.
type Sharing struct {
	Key string // never empty
	// Namespaces are the other namespaces, sorted. Services there must name this one, too.
	Namespaces []string
}

// A requestField is one field in which a Service requests something.
type requestField struct{ field, value string }

func annotation(key string) string { return "metadata.annotations[" + key + "]" }

// requestFields returns the annotations among keys that are set, in order of precedence.
func requestFields(o *corev1.Service, keys []string) []requestField {
	var ws []requestField
	for _, k := range keys {
		if v := strings.TrimSpace(o.Annotations[k]); v != "" {
			ws = append(ws, requestField{annotation(k), v})
		}
	}
	return ws
}

// parseRequest reads which addresses the Service requests, and how. If several fields do, the first
// one applies, and a difference becomes a Problem.
func parseRequest(o *corev1.Service, s *Spec, p *Problems) {
	ws := requestFields(o, addressAnnotations)
	if ip := strings.TrimSpace(o.Spec.LoadBalancerIP); ip != "" {
		ws = append(ws, requestField{"spec.loadBalancerIP", ip})
	}
	if len(ws) > 0 {
		var bad string
		s.Requested, bad = parseAddrs(ws[0].value)
		if n := len(s.Requested); n > maxRequested {
			s.Requested, bad = nil, fmt.Sprintf(
				"has %d addresses, and a Service may request %d; divide them between several Services", n, maxRequested)
		}
		if bad != "" {
			p.add(RequestRefused, ws[0].field, "", bad) // which has the part of the value that matters
		}
		p.contradict(ws, func(v string) bool {
			addrs, _ := parseAddrs(v)
			return slices.Equal(addrs, s.Requested)
		})
	}
	if ws = requestFields(o, poolAnnotations); len(ws) > 0 {
		s.RequestedPools = parseNameList(ws[0], "pools", maxRequestedPools, p)
		p.contradict(ws, func(v string) bool { return slices.Equal(names(v), s.RequestedPools) })
	}
	parseSharing(o, s, p)
	switch v := strings.TrimSpace(o.Annotations[ReserveAnnotation]); v {
	case "", "false":
	case "true":
		s.Reserve = true
	default:
		s.Reserve = true
		p.Add(annotation(ReserveAnnotation), v, "must be true or false; taken for true, by which nothing is lost")
	}
}

// contradict adds which requests contradict the first of them.
func (p *Problems) contradict(ws []requestField, agrees func(string) bool) {
	for _, w := range ws[1:] {
		if !agrees(w.value) {
			p.add(Contradiction, w.field, w.value,
				fmt.Sprintf("contradicts %s %q, which counts; remove one of them", ws[0].field,
					shorten(ws[0].value, maxValue)))
		}
	}
}

func parseSharing(o *corev1.Service, s *Spec, p *Problems) {
	ws := requestFields(o, sharingAnnotations)
	others := names(o.Annotations[SharingNamespacesAnnotation])
	if n := len(others); n > maxSharingNamespaces {
		p.Add(annotation(SharingNamespacesAnnotation), o.Annotations[SharingNamespacesAnnotation],
			fmt.Sprintf("has %d namespaces, and may have %d; none counts", n, maxSharingNamespaces))
		others = nil
	}
	if len(ws) == 0 {
		if len(others) > 0 {
			p.Add(annotation(SharingNamespacesAnnotation), o.Annotations[SharingNamespacesAnnotation],
				fmt.Sprintf("names namespaces that share the Service's address, and no key says that it does; "+
					"add the annotation %s", SharingAnnotation))
		}
		return
	}
	others = slices.DeleteFunc(others, func(n string) bool { return n == o.Namespace })
	slices.Sort(others)
	for i, name := range others {
		others[i] = interned(name)
	}
	s.Sharing = &Sharing{Key: interned(ws[0].value), Namespaces: slices.Compact(others)}
	p.contradict(ws, func(v string) bool { return v == s.Sharing.Key })
}

// parseNameList reads names. More than most of them are a bad request.
func parseNameList(f requestField, what string, most int, p *Problems) []string {
	list := names(f.value)
	if n := len(list); n > most {
		p.add(RequestRefused, f.field, "", fmt.Sprintf("has %d %s, and a Service may name %d", n, what, most))
		return nil
	}
	for i, name := range list {
		list[i] = interned(name)
	}
	return list
}

// names splits a list at commas.
func names(s string) []string {
	var list []string
	have := map[string]bool{}
	for n := range strings.SplitSeq(s, ",") {
		if n = strings.TrimSpace(n); n != "" && !have[n] {
			have[n] = true
			list = append(list, n)
		}
	}
	return list
}

// IsHostPart reports whether a is only the host part of an address, such as ::10 or 0.0.0.10: the
// network part is that of a pool, which may change. No Service can have an address of 0.0.0.0/8
// (RFC 1122 §3.2.1.3), and hosts do not use ::/64 (RFC 4291 §2.5.5).
func IsHostPart(a netip.Addr) bool {
	if a.IsUnspecified() || a.Is4In6() {
		return false
	}
	if a.Is4() {
		return a.As4()[0] == 0
	}
	b := a.As16()
	return [8]byte(b[:8]) == [8]byte{}
}
