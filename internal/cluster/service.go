package cluster

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Class is the loadBalancerClass of Services that Fanfare serves. It also serves Services
// without a class, unless --class-only is set, and those of the classes of --lb-class.
const Class = "fanfare.io/lb"

// Classes are the loadBalancerClasses of the Services that Fanfare serves. The zero value: Class, and
// Services without a class.
type Classes struct {
	Only bool // leaves Services without a class to other implementations
	// more classes: a Service's class cannot be changed, so Fanfare takes it over from another implementation
	Also []string
}

// Serves reports whether Fanfare serves Services of a class; empty: those without one.
func (c Classes) Serves(class string) bool {
	return class == Class || class == "" && !c.Only || class != "" && slices.Contains(c.Also, class)
}

// l2NodeAnnotation of a Service: the node that should answer for its addresses over Layer 2,
// as long as it can. It has an effect only if the AddressPool sets `allowL2Node`, by default not.
const l2NodeAnnotation = "fanfare.io/l2-node"

// serviceProxyLabel of a Service: kube-proxy ignores the Service. Fanfare serves it, and its
// healthCheckNodePort.
const serviceProxyLabel = "service.kubernetes.io/service-proxy-name"

// parseService returns nil for a Service that Fanfare does not serve.
func parseService(o *corev1.Service, classes Classes) (*Spec, Problems) {
	if o.Spec.Type != corev1.ServiceTypeLoadBalancer {
		return nil, nil
	}
	class := ""
	if o.Spec.LoadBalancerClass != nil {
		class = *o.Spec.LoadBalancerClass
	}
	if !classes.Serves(class) {
		return nil, nil
	}
	var p, inStatus Problems
	s := &Spec{
		Name:                  Name{interned(o.Namespace), o.Name},
		UID:                   o.UID,
		Created:               o.CreationTimestamp.UTC(),
		Deleting:              o.DeletionTimestamp != nil,
		Class:                 class,
		Labels:                o.Labels,
		Ports:                 parsePorts(o.Spec.Ports, &p),
		ExternalTrafficPolicy: parseExternalPolicy(o.Spec.ExternalTrafficPolicy, &p),
		InternalTrafficPolicy: parseInternalPolicy(o.Spec.InternalTrafficPolicy, &p),
		PublishNotReady:       o.Spec.PublishNotReadyAddresses,
		ServiceProxy:          o.Labels[serviceProxyLabel],
		Affinity:              parseAffinity(o, &p),
		Scheduler:             parseScheduler(o, &p),
		Communities:           parseServiceCommunities(o, &p),
		L2Node:                interned(strings.TrimSpace(o.Annotations[l2NodeAnnotation])),
		Status:                parseStatus(o.Status.LoadBalancer.Ingress, &inStatus),
		StatusHost:            statusHost(o.Status.LoadBalancer.Ingress),
		StatusProxied:         statusProxied(o.Status.LoadBalancer.Ingress),
		Reported:              parseCondition(o.Status.Conditions),
	}
	if s.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
		s.HealthCheckPort = parseHealthCheckPort(o, &p)
	}
	parseSources(o, s, &p)
	parseRequest(o, s, &p)
	parseUnknownAnnotations(o, &p)
	parseFamilies(o, s, &p)
	s.Problems = p.ofService() // without those of the status, which is not the user's
	return s, append(p, inStatus...)
}

// foreignAddresses returns the addresses of a Service that another implementation serves: then
// parsed is nil.
func foreignAddresses(o *corev1.Service, parsed *Spec) []netip.Addr {
	if parsed != nil || o.Spec.Type != corev1.ServiceTypeLoadBalancer {
		return nil
	}
	var ignored Problems // in an object of another implementation
	return parseStatus(o.Status.LoadBalancer.Ingress, &ignored)
}

func parsePorts(in []corev1.ServicePort, p *Problems) []Port {
	if len(in) == 0 {
		p.Add("spec.ports", "", "missing; a Service needs at least one port")
	}
	ports := make([]Port, 0, len(in))
	// A Service may have thousands of ports, and every change of it parses them all.
	names, numbers := make(map[string]bool, len(in)), make(map[Port]bool, len(in))
	for i, sp := range in {
		field := func() string { return fmt.Sprintf("spec.ports[%d]", i) }
		port := Port{
			Name: interned(sp.Name), Protocol: interned(cmp.Or(sp.Protocol, corev1.ProtocolTCP)), Port: uint16(sp.Port),
		}
		switch {
		case sp.Port < 1 || sp.Port > 65535:
			p.Add(field()+".port", fmt.Sprint(sp.Port), "must be from 1 to 65535; this port is left out")
			continue
		case !knownProtocol(port.Protocol):
			p.Add(field()+".protocol", string(port.Protocol), "must be TCP, UDP or SCTP; this port is left out")
			continue
		}
		// The API server refuses both, but a folder of files does not: packets could not
		// distinguish equal ports, and endpoints could not distinguish equal names.
		number := Port{Protocol: port.Protocol, Port: port.Port}
		if names[port.Name] || numbers[number] {
			p.Add(field(), "", fmt.Sprintf("repeats the name %q or the number %d/%s of a port before it; "+
				"this port is left out",
				port.Name, port.Port, port.Protocol))
			continue
		}
		names[port.Name], numbers[number] = true, true
		if sp.TargetPort.Type == intstr.Int {
			port.Target = cmp.Or(uint16(sp.TargetPort.IntVal), port.Port)
		}
		ports = append(ports, port)
	}
	return ports
}

func knownProtocol(p corev1.Protocol) bool {
	return p == corev1.ProtocolTCP || p == corev1.ProtocolUDP || p == corev1.ProtocolSCTP
}

func parseExternalPolicy(v corev1.ServiceExternalTrafficPolicy, p *Problems) corev1.ServiceExternalTrafficPolicy {
	const cluster, local = corev1.ServiceExternalTrafficPolicyCluster, corev1.ServiceExternalTrafficPolicyLocal
	return parseWord("spec.externalTrafficPolicy", cmp.Or(v, cluster), cluster, p, cluster, local)
}

func parseInternalPolicy(v *corev1.ServiceInternalTrafficPolicy, p *Problems) corev1.ServiceInternalTrafficPolicy {
	const cluster, local = corev1.ServiceInternalTrafficPolicyCluster, corev1.ServiceInternalTrafficPolicyLocal
	return parseWord("spec.internalTrafficPolicy", orDefault(v, cluster), cluster, p, cluster, local)
}

func parseHealthCheckPort(o *corev1.Service, p *Problems) uint16 {
	n := o.Spec.HealthCheckNodePort
	if n < 0 || n > 65535 {
		p.Add("spec.healthCheckNodePort", fmt.Sprint(n),
			"must be from 1 to 65535; no node serves the Service's health check")
		return 0
	}
	return uint16(n)
}

// parseStatus reads the addresses. An entry with a host name instead of an address belongs to
// another implementation.
func parseStatus(in []corev1.LoadBalancerIngress, p *Problems) []netip.Addr {
	var addrs []netip.Addr
	for i, ing := range in {
		if ing.IP == "" {
			continue
		}
		a, err := parseAddr(ing.IP)
		if err == nil {
			err = assignable(a)
		}
		if err != nil {
			p.Add(fmt.Sprintf("status.loadBalancer.ingress[%d].ip", i), ing.IP, err.Error())
			continue
		}
		addrs = append(addrs, a)
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs)
}

// statusHost returns the first host name in a status.
func statusHost(in []corev1.LoadBalancerIngress) string {
	for _, ing := range in {
		if ing.Hostname != "" {
			return ing.Hostname
		}
	}
	return ""
}

// statusProxied treats a missing ipMode as VIP, as the API server does.
func statusProxied(in []corev1.LoadBalancerIngress) bool {
	return slices.ContainsFunc(in, func(i corev1.LoadBalancerIngress) bool {
		return i.IP != "" && i.IPMode != nil && *i.IPMode != corev1.LoadBalancerIPModeVIP
	})
}

func parseCondition(in []metav1.Condition) AddressCondition {
	for _, c := range in {
		if c.Type == AddressAssigned {
			return AddressCondition{c.Status == metav1.ConditionTrue, Code(c.Reason), c.Message}
		}
	}
	return AddressCondition{}
}

// parseFamilies fills in IPFamilies and IPFamilyPolicy. An API server always sets both. A Service
// in a file may lack them, and gets the defaults of a dual-stack cluster's API server.
func parseFamilies(o *corev1.Service, s *Spec, p *Problems) {
	var families []corev1.IPFamily
	for i, f := range o.Spec.IPFamilies {
		if f != corev1.IPv4Protocol && f != corev1.IPv6Protocol {
			p.Add(fmt.Sprintf("spec.ipFamilies[%d]", i), string(f), "must be IPv4 or IPv6")
		} else if !slices.Contains(families, f) {
			families = append(families, interned(f))
		}
	}
	if len(families) == 0 {
		families = impliedFamilies(o, s)
	}
	s.IPFamilyPolicy = parseFamilyPolicy(o.Spec.IPFamilyPolicy, len(families), p)

	defaulted := len(o.Spec.ClusterIPs) != 0 || o.Spec.ClusterIP != "" // by an API server
	single := s.IPFamilyPolicy == corev1.IPFamilyPolicySingleStack
	if len(families) == 1 && !single && !defaulted {
		families = append(families, otherFamily(families[0]))
	}
	if single {
		families = families[:1]
	}
	s.IPFamilies = families
}

func parseFamilyPolicy(v *corev1.IPFamilyPolicy, families int, p *Problems) corev1.IPFamilyPolicy {
	if v == nil {
		if families > 1 {
			return corev1.IPFamilyPolicyPreferDualStack
		}
		return corev1.IPFamilyPolicySingleStack
	}
	return parseWord("spec.ipFamilyPolicy", *v, corev1.IPFamilyPolicySingleStack, p,
		corev1.IPFamilyPolicySingleStack, corev1.IPFamilyPolicyPreferDualStack, corev1.IPFamilyPolicyRequireDualStack)
}

// impliedFamilies returns the families of the addresses that the object names.
func impliedFamilies(o *corev1.Service, s *Spec) []corev1.IPFamily {
	var families []corev1.IPFamily
	add := func(a netip.Addr) {
		if f := FamilyOf(a); a.IsValid() && !slices.Contains(families, f) {
			families = append(families, f)
		}
	}
	for _, ip := range append(slices.Clone(o.Spec.ClusterIPs), o.Spec.ClusterIP) {
		a, _ := netip.ParseAddr(ip) // "None" and "" are no address
		add(a)
	}
	if len(families) == 0 {
		for _, a := range slices.Concat(s.Requested, s.Status) {
			add(a)
		}
	}
	if len(families) == 0 {
		families = append(families, corev1.IPv4Protocol)
	}
	return families
}

// FamilyOf returns the address family of a.
func FamilyOf(a netip.Addr) corev1.IPFamily {
	if a.Is4() {
		return corev1.IPv4Protocol
	}
	return corev1.IPv6Protocol
}

func otherFamily(f corev1.IPFamily) corev1.IPFamily {
	if f == corev1.IPv4Protocol {
		return corev1.IPv6Protocol
	}
	return corev1.IPv4Protocol
}
