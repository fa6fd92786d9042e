package bgp

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
)

// Defaults of a Session.
const (
	defaultPort        = 179
	defaultHoldTime    = 90 * time.Second // RFC 4271 §10
	defaultConnectTime = 5 * time.Second
	defaultRestartTime = 30 * time.Second
)

// Validate names everything in s that cannot work: the object, the field, its value, and what would
// be right. Set leaves out what Validate names and does the rest.
func (s State) Validate() error {
	_, bad := check(s, Routes{})
	return errors.Join(bad...)
}

// check separates s into the valid part and the mistakes. valid are routes that are known to be so: of
// many, only others are checked. Valid routes remain the same set, for callers that compare pointers.
func check(s State, valid Routes) (State, []error) {
	identity := s.identityFaults()
	sessions, bad := checkSessions(s.Sessions)
	routes, badRoutes := checkRoutes(valid, s.Routes)
	hops := s.dropBadHops()
	s.Sessions, s.Routes = sessions, routes
	return s, slices.Concat(identity, hops, bad, badRoutes)
}

// dropBadHops removes invalid next hops.
func (s *State) dropBadHops() (bad []error) {
	if s.NextHop4.IsValid() && !isHop(s.NextHop4, true) {
		bad = append(bad, fmt.Errorf("NextHop4 %s: must be an IPv4 address of this node", s.NextHop4))
		s.NextHop4 = netip.Addr{}
	}
	if s.NextHop6.IsValid() && !isHop(s.NextHop6, false) {
		bad = append(bad, fmt.Errorf("NextHop6 %s: must be an IPv6 address of this node, and not a link-local one",
			s.NextHop6))
		s.NextHop6 = netip.Addr{}
	}
	return bad
}

// isHop reports whether a can be the next hop for a router of the other family. A link-local IPv6
// address cannot: the router would not know its link.
func isHop(a netip.Addr, is4 bool) bool {
	return usable(a) && a.Is4() == is4 && (is4 || !a.IsLinkLocalUnicast())
}

// identityFaults returns why this State cannot open any session. A State without sessions needs no
// identity.
func (s State) identityFaults() []error {
	var bad []error
	if len(s.Sessions) == 0 {
		return nil
	}
	if s.ASN == 0 {
		bad = append(bad, errors.New("ASN 0: must be 1 to 4294967295"))
	}
	if !isRouterID(s.RouterID) {
		bad = append(bad, fmt.Errorf("router ID %s: must be an IPv4 address (RFC 4271 §4.2)", s.RouterID))
	}
	return bad
}

// Faults are the mistakes in a State. Retrying does not help: they last until the State changes.
type Faults []error

func (f Faults) Error() string { return errors.Join(f...).Error() }

// Unwrap lets errors.Is and errors.As inspect each.
func (f Faults) Unwrap() []error { return f }

// checkSessions keeps the first of several sessions with the same name or router: GoBGP and the
// router identify a session by the peer's address.
func checkSessions(all []Session) (good []Session, bad []error) {
	names := map[string]bool{}
	peers := map[string]string{} // by the peer's address or interface
	for _, s := range all {
		faults := s.faults()
		if names[s.Name] {
			faults = append(faults, fmt.Errorf("session %s: the name is used twice", s.Name))
		}
		if other, ok := peers[s.routerText()]; ok && len(faults) == 0 {
			field, value := "PeerAddress", s.PeerAddress.String()
			if s.Interface != "" {
				field, value = "Interface", s.Interface
			}
			faults = append(faults, fmt.Errorf("session %s: %s %s: session %s has it already, and there can be only "+
				"one, also with another port or device; remove one of them", s.Name, field, value, other))
		}
		if len(faults) > 0 {
			bad = append(bad, faults...)
			continue
		}
		names[s.Name], peers[s.routerText()] = true, s.Name
		good = append(good, s)
	}
	slices.SortFunc(good, compareSessions)
	return good, bad
}

func (s Session) faults() []error {
	var bad []error
	add := func(field string, value any, right string) {
		bad = append(bad, fmt.Errorf("session %s: %s %v: %s", s.Name, field, value, right))
	}
	if s.Name == "" {
		add("Name", `""`, "must not be empty")
	}
	switch {
	case s.PeerASN == 0 && !s.External:
		add("PeerASN", 0, "must be 1 to 4294967295")
	case s.PeerASN != 0 && s.External:
		add("PeerASN", s.PeerASN, "must be 0 when any external AS number is right")
	}
	if s.RouterID.IsValid() && !isRouterID(s.RouterID) {
		add("RouterID", s.RouterID, "must be an IPv4 address (RFC 4271 §4.2)")
	}
	if len(s.Password) > unix.TCP_MD5SIG_MAXKEYLEN {
		add("Password", s.Password, fmt.Sprintf("must have at most %d bytes", unix.TCP_MD5SIG_MAXKEYLEN))
	}
	s.addressFaults(add)
	s.hopFaults(add)
	s.bfdFaults(add)
	s.timerFaults(add)
	return bad
}

func (s Session) addressFaults(add func(field string, value any, right string)) {
	peer, source := s.PeerAddress, s.SourceAddress
	if s.Interface != "" {
		s.interfaceFaults(add)
		return
	}
	switch {
	case !usable(peer):
		add("PeerAddress", peer, "must be the router's IPv4 or IPv6 address")
		return
	case peer.IsLinkLocalUnicast() && peer.Is6() && peer.Zone() == "":
		add("PeerAddress", peer, "a link-local address needs its interface, as in "+peer.String()+"%eth0")
	case peer.Zone() != "" && !peer.IsLinkLocalUnicast():
		add("PeerAddress", peer, "only a link-local address can name an interface")
	}
	if len(s.Device) >= unix.IFNAMSIZ {
		add("Device", s.Device, "must be the name of an interface or a VRF, which has at most 15 characters")
	}
	switch {
	case !source.IsValid():
	case !usable(source):
		add("SourceAddress", source, "must be an address of this node")
	case s.SourceInterface != "":
		add("SourceInterface", s.SourceInterface, fmt.Sprintf("excludes SourceAddress %s", source))
	case source.Is4() != peer.Is4():
		add("SourceAddress", source, fmt.Sprintf("must be of the same family as PeerAddress %s", peer))
	}
	if s.NextHop.IsValid() && !isHop(s.NextHop, !peer.Is4()) {
		add("NextHop", s.NextHop, fmt.Sprintf("must be an address of this node of the other family than PeerAddress %s",
			peer))
	}
}

// interfaceFaults returns the mistakes of a session whose ends discover each other: they use
// link-local addresses on one link.
func (s Session) interfaceFaults(add func(field string, value any, right string)) {
	switch {
	case s.PeerAddress.IsValid():
		add("Interface", s.Interface, fmt.Sprintf("excludes PeerAddress %s", s.PeerAddress))
	case s.SourceAddress.IsValid():
		add("Interface", s.Interface, fmt.Sprintf("excludes SourceAddress %s: our end is its link-local address",
			s.SourceAddress))
	case s.SourceInterface != "":
		add("Interface", s.Interface, fmt.Sprintf("excludes SourceInterface %s: our end is its link-local address",
			s.SourceInterface))
	case s.Passive:
		add("Interface", s.Interface, "excludes Passive: a passive session needs the router's address")
	case s.EBGPMultihopTTL > 1:
		add("Interface", s.Interface, "excludes EBGPMultihopTTL: the router is on the link")
	}
	if s.NextHop.IsValid() && !isHop(s.NextHop, true) {
		add("NextHop", s.NextHop, "must be an IPv4 address of this node")
	}
}

func isRouterID(a netip.Addr) bool { return a.Is4() && !a.IsUnspecified() }

func (s Session) hopFaults(add func(field string, value any, right string)) {
	switch {
	case s.TTLSecurityHops == 255:
		add("TTLSecurityHops", s.TTLSecurityHops, "must be 1 to 254")
	case s.TTLSecurityHops != 0 && s.EBGPMultihopTTL != 0:
		add("TTLSecurityHops", s.TTLSecurityHops,
			"excludes EBGPMultihopTTL: it says itself how far away the router may be")
	}
}

func (s Session) bfdFaults(add func(field string, value any, right string)) {
	b := s.BFD
	if !b.enabled() {
		return
	}
	const least, most = 10 * time.Millisecond, time.Minute
	if b.Transmit < least || b.Transmit > most {
		add("BFD.Transmit", b.Transmit, "must be 10 ms to 60 s")
	}
	if b.Receive < least || b.Receive > most {
		add("BFD.Receive", b.Receive, "must be 10 ms to 60 s")
	}
	if b.Multiplier < 2 {
		add("BFD.Multiplier", b.Multiplier, "must be 2 to 255")
	}
	if s.EBGPMultihopTTL > 1 || s.TTLSecurityHops > 1 {
		add("BFD", "with hops", "is for a router that is directly connected (RFC 5881)")
	}
}

func (s Session) timerFaults(add func(field string, value any, right string)) {
	hold, keepalive, restart := s.holdTime(), s.keepaliveTime(), s.restartTime()
	if hold < 3*time.Second || hold > 65535*time.Second || !wholeSeconds(hold) {
		add("HoldTime", hold, "must be whole seconds, 3 s to 65535 s (RFC 4271 §4.2)")
	}
	if s.KeepaliveTime != 0 && (keepalive < time.Second || keepalive >= hold || !wholeSeconds(keepalive)) {
		add("KeepaliveTime", keepalive, "must be whole seconds, at least 1 s and less than the hold time")
	}
	if s.ConnectTime < 0 {
		add("ConnectTime", s.ConnectTime, "must not be negative")
	}
	if s.GracefulRestart && (restart < 2*time.Second || restart > 4095*time.Second || !wholeSeconds(restart)) {
		add("RestartTime", restart, "must be whole seconds, 2 s to 4095 s (RFC 4724 §3)")
	}
}

// usable reports whether a is an address of one host. ::ffff:192.0.2.1 is refused: it could mean
// either family.
func usable(a netip.Addr) bool {
	return a.IsValid() && !a.Is4In6() && !a.IsUnspecified() && !a.IsMulticast()
}

func wholeSeconds(d time.Duration) bool { return d%time.Second == 0 }

// checkRoutes returns the same set if all its routes are valid, as usual. It checks routes that are not
// in valid.
func checkRoutes(valid, all Routes) (good Routes, bad []error) {
	var refused []Route
	_, came := sortedset.Changes(valid, all, compareRoutes)
	for _, r := range came {
		if err := r.Validate(); err != nil {
			refused, bad = append(refused, r), append(bad, err)
		}
	}
	return sortedset.Without(all, refused, compareRoutes), bad
}

// Validate returns why no router can receive r, nil if routers can. Set leaves out such a route,
// and announces all others.
func (r Route) Validate() error {
	switch {
	case !r.Prefix.IsValid() || r.Prefix.Addr().Is4In6():
		return fmt.Errorf("route %s: must be an IPv4 or IPv6 prefix", r.Prefix)
	case r.Prefix != r.Prefix.Masked():
		return fmt.Errorf("route %s: has bits beyond its length, %s would be right", r.Prefix, r.Prefix.Masked())
	}
	if err := r.Attributes.fault(); err != nil {
		return fmt.Errorf("route %s: %w", r.Prefix, err)
	}
	return nil
}
