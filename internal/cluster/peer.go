package cluster

import (
	"cmp"
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
	"github.com/fanfare-lb/fanfare/bgp"
)

const (
	bgpPort            = 179
	defaultHoldTime    = 90 * time.Second
	defaultRestartTime = 30 * time.Second
	// asTrans replaces AS numbers that do not fit into 16 bits (RFC 6793).
	asTrans = 23456
)

// parsePeer returns nil for any mistake: a session that differs from the request might come up, and
// then announce too much.
func parsePeer(o *v1alpha1.BGPPeer) (*Peer, Problems) {
	var p Problems
	s := &o.Spec
	peer := &Peer{
		UID:          o.UID,
		Created:      o.CreationTimestamp.UTC(),
		NodeSelector: parseSelector("spec.nodeSelector", s.NodeSelector, &p),
		Session: bgp.Session{
			Name:            o.Name,
			PeerPort:        bgpPort,
			HoldTime:        parseSeconds("spec.holdTime", s.HoldTime, 3, 65535, &p),
			KeepaliveTime:   parseSeconds("spec.keepaliveTime", s.KeepaliveTime, 1, 65535, &p),
			ConnectTime:     parseSeconds("spec.connectTime", s.ConnectTime, 1, 65535, &p),
			GracefulRestart: true,
			RestartTime:     defaultRestartTime,
			Weights:         s.WeightByEndpoints,
		},
	}
	parseRouter(s, peer, &p)
	if s.PeerPort != 0 {
		peer.PeerPort = uint16(parseNumber("spec.peerPort", int64(s.PeerPort), 1, 65535, &p))
	}
	parseASNs(s, peer, &p)
	peer.BFD = parseBFD(s, &p)
	if ref := s.PasswordSecretRef; ref != nil {
		if peer.Secret = ref.Name; len(validation.IsDNS1123Subdomain(ref.Name)) != 0 {
			p.Add("spec.passwordSecretRef.name", ref.Name,
				"must be the name of a Secret in the namespace of the speakers")
		}
	}
	parseOurEnd(s, peer, &p)
	parseMultihop(s, peer, &p)
	if hold := cmp.Or(peer.HoldTime, defaultHoldTime); peer.KeepaliveTime >= hold {
		p.Add("spec.keepaliveTime", peer.KeepaliveTime.String(),
			fmt.Sprintf("must be less than holdTime, which is %s; a third of it is usual", hold))
	}
	if gr := s.GracefulRestart; gr != nil {
		peer.GracefulRestart = orDefault(gr.Enabled, true)
		if gr.RestartTime != nil {
			peer.RestartTime = parseSeconds("spec.gracefulRestart.restartTime", gr.RestartTime, 2, 4095, &p)
		}
	}
	if len(p) != 0 {
		return nil, p
	}
	return peer, nil
}

// namedOnce has the text of the CRD's rule.
const namedOnce = "name the router by one of peerAddress, defaultGateway and interface"

// parseRouter reads how the object names the router.
func parseRouter(s *v1alpha1.BGPPeerSpec, peer *Peer, p *Problems) {
	const field = "spec.defaultGateway"
	switch family := s.DefaultGateway; {
	case s.Interface != "" && (s.PeerAddress != "" || family != ""):
		p.Add("spec.interface", s.Interface, namedOnce)
	case s.Interface != "":
		parseInterface(s, peer, p)
	case family == "":
		peer.PeerAddress = parsePeerAddress(s.PeerAddress, p)
	case family != corev1.IPv4Protocol && family != corev1.IPv6Protocol:
		p.Add(field, string(family), "must be IPv4 or IPv6")
	case s.PeerAddress != "":
		p.Add(field, string(family), namedOnce)
	default:
		peer.DefaultGateway = family
	}
}

// parseInterface reads the link to a router whose address both ends discover.
func parseInterface(s *v1alpha1.BGPPeerSpec, peer *Peer, p *Problems) {
	switch {
	case !isInterface(s.Interface):
		p.Add("spec.interface", s.Interface, "must be the name of an interface such as eth1, of 15 characters at most")
	case s.SourceAddress != "":
		p.Add("spec.sourceAddress", s.SourceAddress, "with interface our end is its link-local address; remove it")
	case s.Passive:
		p.Add("spec.passive", "true", "a passive session needs the router's address; remove it, or name peerAddress "+
			"instead of interface")
	case s.EBGPMultihopTTL > 1:
		p.Add("spec.ebgpMultihopTTL", strconv.Itoa(int(s.EBGPMultihopTTL)),
			"with interface the router is on the link; remove it")
	default:
		peer.Interface = s.Interface
	}
}

// parsePeerAddress requires a zone for a link-local address, which is ambiguous without its
// interface, and refuses it for others.
func parsePeerAddress(s string, p *Problems) netip.Addr {
	const field = "spec.peerAddress"
	if s == "" {
		p.Add(field, "", "missing; "+namedOnce)
		return netip.Addr{}
	}
	a, err := netip.ParseAddr(s)
	if err != nil {
		p.Add(field, s, "must be an address such as 192.0.2.1 or 2001:db8::1")
		return netip.Addr{}
	}
	linkLocal := a.Is6() && a.IsLinkLocalUnicast()
	switch {
	case a.Is4In6():
		p.Add(field, s, fmt.Sprintf("is an IPv4 address written as IPv6; write %s", a.Unmap().WithZone("")))
	case a.IsUnspecified() || a.IsMulticast() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		p.Add(field, s, "must be the address of one router, and not unspecified, multicast or broadcast")
	case linkLocal && !interfaceName.MatchString(a.Zone()):
		p.Add(field, s, fmt.Sprintf("a link-local IPv6 address, and no other, needs its interface, as in %s",
			a.WithZone("eth0")))
	case !linkLocal && a.Zone() != "":
		p.Add(field, s, fmt.Sprintf("a link-local IPv6 address, and no other, needs its interface; write %s",
			a.WithZone("")))
	}
	return a
}

func parseASN(field string, n int64, p *Problems) uint32 {
	switch {
	case n == 0:
		p.Add(field, "", "missing; an AS number from 1 to 4294967295")
	case n == asTrans:
		p.Add(field, "23456", "is AS_TRANS, which routers without 4-byte AS numbers see in place of a larger one "+
			"(RFC 6793); write the real AS number")
	default:
		return uint32(parseNumber(field, n, 1, v1alpha1.MaxASN, p))
	}
	return 0
}

func parseASNs(s *v1alpha1.BGPPeerSpec, peer *Peer, p *Problems) {
	peer.MyASN = parseASN("spec.myASN", s.MyASN, p)
	peer.LocalASN = peer.MyASN
	if s.LocalASN != 0 {
		peer.LocalASN = parseASN("spec.localASN", s.LocalASN, p)
	}
	switch {
	case s.PeerASN.Internal:
		peer.PeerASN = peer.LocalASN
	case s.PeerASN.External:
		peer.External = true
	default:
		peer.PeerASN = parseASN("spec.peerASN", s.PeerASN.Number, p)
	}
}

func parseNumber(field string, n, lo, hi int64, p *Problems) int64 {
	if n < lo || n > hi {
		p.Add(field, strconv.FormatInt(n, 10), fmt.Sprintf("must be from %d to %d", lo, hi))
		return 0
	}
	return n
}

// parseSeconds reads a time that is sent in whole seconds. Zero: unset.
func parseSeconds(field string, d *metav1.Duration, lo, hi int64, p *Problems) time.Duration {
	switch {
	case d == nil:
		return 0
	case d.Duration%time.Second != 0:
		p.Add(field, d.Duration.String(), "must be in whole seconds, which is what BGP counts in")
	case d.Duration < time.Duration(lo)*time.Second || d.Duration > time.Duration(hi)*time.Second:
		p.Add(field, d.Duration.String(), fmt.Sprintf("must be from %ds to %ds", lo, hi))
	default:
		return d.Duration
	}
	return 0
}

// Valid names of interfaces in Linux (IFNAMSIZ), except numbers, which were probably meant as an
// address.
var (
	interfaceName = regexp.MustCompile(`^[^ /%:]{1,15}$`)
	numbers       = regexp.MustCompile(`^[0-9.]+$`)
)

func isInterface(s string) bool { return interfaceName.MatchString(s) && !numbers.MatchString(s) }

// parseOurEnd reads the local address and BGP identifier.
func parseOurEnd(s *v1alpha1.BGPPeerSpec, peer *Peer, p *Problems) {
	if isInterface(s.SourceAddress) {
		peer.SourceInterface = s.SourceAddress
	} else if s.SourceAddress != "" {
		a, err := parseAddr(s.SourceAddress)
		switch {
		case err != nil:
			p.Add("spec.sourceAddress", s.SourceAddress,
				"must be an address such as 192.0.2.7, or the name of an interface, of 15 characters at most")
		case peer.PeerAddress.IsValid() && a.BitLen() != peer.PeerAddress.BitLen():
			p.Add("spec.sourceAddress", s.SourceAddress, "must be of peerAddress's address family")
		case peer.DefaultGateway != "" && a.Is4() != (peer.DefaultGateway == corev1.IPv4Protocol):
			p.Add("spec.sourceAddress", s.SourceAddress, "must be of defaultGateway's address family")
		}
		peer.SourceAddress = a
	}
	if s.Device != "" && !interfaceName.MatchString(s.Device) {
		p.Add("spec.device", s.Device, "must be the name of an interface or a VRF such as eth0, of "+
			"15 characters at most")
	}
	peer.Device, peer.Passive = s.Device, s.Passive
	if s.RouterID != "" {
		a, err := parseAddr(s.RouterID)
		if err != nil || !a.Is4() || a.IsUnspecified() {
			p.Add("spec.routerID", s.RouterID, "must be written as an IPv4 address such as 192.0.2.7, and not 0.0.0.0")
		}
		peer.RouterID = a
	}
}

// parseBFD applies the defaults of the CRD.
func parseBFD(s *v1alpha1.BGPPeerSpec, p *Problems) bgp.BFD {
	o := s.BFD
	if o == nil {
		return bgp.BFD{}
	}
	interval := func(field string, d *metav1.Duration) time.Duration {
		switch {
		case d == nil:
			return 300 * time.Millisecond
		case d.Duration < 10*time.Millisecond || d.Duration > time.Minute:
			p.Add("spec.bfd."+field, d.Duration.String(), "must be from 10ms to 60s")
		}
		return d.Duration
	}
	b := bgp.BFD{
		Transmit: interval("transmitInterval", o.TransmitInterval),
		Receive:  interval("receiveInterval", o.ReceiveInterval), Multiplier: 3, Passive: o.Passive,
	}
	if o.DetectMultiplier != 0 {
		b.Multiplier = uint8(parseNumber("spec.bfd.detectMultiplier", int64(o.DetectMultiplier), 2, 255, p))
	}
	if s.EBGPMultihopTTL > 1 || s.TTLSecurityHops > 1 {
		p.Add("spec.bfd", "", "is for a router that is directly connected (RFC 5881); remove it, or the number of hops")
	}
	return b
}

func parseMultihop(s *v1alpha1.BGPPeerSpec, peer *Peer, p *Problems) {
	const field = "spec.ebgpMultihopTTL"
	if s.TTLSecurityHops != 0 {
		peer.TTLSecurityHops = uint8(parseNumber("spec.ttlSecurityHops", int64(s.TTLSecurityHops), 1, 254, p))
	}
	if s.EBGPMultihopTTL == 0 {
		return
	}
	if s.TTLSecurityHops != 0 {
		p.Add("spec.ttlSecurityHops", strconv.Itoa(int(s.TTLSecurityHops)),
			"says itself how far away the router may be; remove it or ebgpMultihopTTL")
	}
	if peer.PeerASN == peer.LocalASN && peer.LocalASN != 0 {
		p.Add(field, strconv.Itoa(int(s.EBGPMultihopTTL)),
			"is for eBGP, and this peer has our own AS number; remove it")
		return
	}
	peer.EBGPMultihopTTL = uint8(parseNumber(field, int64(s.EBGPMultihopTTL), 1, 255, p))
}
