package metallb

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
)

// addPeer converts a router. Lists of nodeSelectors become several BGPPeers, of which at most one selects any
// node.
func (c *converter) addPeer(p *BGPPeer) {
	about := c.about("BGPPeer", p.Name)
	if !about.valid("spec.nodeSelectors", p.Spec.NodeSelectors) {
		return
	}
	spec := v1alpha1.BGPPeerSpec{
		PeerAddress: p.Spec.PeerAddress, Interface: p.Spec.Interface, SourceAddress: p.Spec.SourceAddress,
		Device: p.Spec.VRF, PeerPort: int32(p.Spec.PeerPort), RouterID: p.Spec.RouterID, MyASN: int64(p.Spec.MyASN),
		LocalASN: int64(p.Spec.LocalASN), PeerASN: v1alpha1.PeerASN{
			Number: int64(p.Spec.PeerASN), Internal: p.Spec.DynamicASN == "internal",
			External: p.Spec.DynamicASN == "external",
		},
		ConnectTime: p.Spec.ConnectTime,
	}
	// MetalLB's CRD writes the default port into each object. Without it, objects that no user gave
	// a port do not get one here.
	if spec.PeerPort == 179 {
		spec.PeerPort = 0
	}
	about.setTimers(&spec, &p.Spec)
	if p.Spec.EBGPMultiHop {
		spec.EBGPMultihopTTL = 255 // as FRR does for "ebgp-multihop" without a number
	}
	about.setPassword(&spec, p)
	c.setBFD(about, &spec, &p.Spec)
	about.noteFamilies(&p.Spec)
	// A second name must not be that of an object which is converted later, or already was.
	taken := func(name string) bool { return named(c.Peers, name) || named(c.in.Peers, name) }
	// The label comes last: it is in every selector, and nothing that disjoint could use.
	for i, s := range c.restrict(disjoint(unite(p.Spec.NodeSelectors))) {
		peer := &v1alpha1.BGPPeer{ObjectMeta: metav1.ObjectMeta{Name: numbered(p.Name, i, taken)}, Spec: spec}
		peer.Spec.NodeSelector = s.selector()
		c.Peers = append(c.Peers, peer)
		c.peers[p.Name] = append(c.peers[p.Name], peer.Name)
	}
	if n := len(c.peers[p.Name]); n > 1 {
		about.todo("spec.nodeSelectors", "becomes %d BGPPeers with one nodeSelector each, of which at most "+
			"one matches any node", n)
	}
}

// setTimers sets the hold time and the keepalive time. In MetalLB each follows from the other
// (parseTimers). Fanfare derives the keepalive time from the hold time only, so that the other
// direction is computed here. Without either, each program uses its own default.
func (s subject) setTimers(spec *v1alpha1.BGPPeerSpec, from *BGPPeerSpec) {
	hold, keepalive := seconds(from.HoldTime), seconds(from.KeepaliveTime)
	if from.HoldTime != nil && hold.Duration == 0 {
		// RFC 4271 section 4.2 permits 0. Then a router that dies is never noticed without BFD.
		s.lost("spec.holdTime", "0 means that the session never times out, which Fanfare does not do; the hold time "+
			"is 90s, and the router's if that is lower")
		return
	}
	if from.HoldTime == nil && from.KeepaliveTime != nil {
		hold = &metav1.Duration{Duration: 3 * keepalive.Duration}
	}
	// MetalLB accepts equal times, with which any delay of a message ends the session. Fanfare's CRD
	// refuses them.
	if keepalive != nil && hold != nil && keepalive.Duration >= hold.Duration {
		s.lost("spec.keepaliveTime", "%s is not less than the hold time, %s; it is a third of that in Fanfare",
			keepalive.Duration, hold.Duration)
		keepalive = nil
	}
	spec.HoldTime, spec.KeepaliveTime = hold, keepalive
}

// seconds cuts a time to whole seconds, BGP's unit, as MetalLB does.
func seconds(d *metav1.Duration) *metav1.Duration {
	if d == nil {
		return nil
	}
	return &metav1.Duration{Duration: d.Truncate(time.Second)}
}

// PasswordSecret returns the name of the Secret for a password that a BGPPeer has as text.
func PasswordSecret(peer string) string { return peer + "-bgp-password" }

// setPassword names the Secret. The password itself must not get into the output, which users store
// and show to others. The conversion does not know in which namespace Fanfare is, or will be,
// installed: each speaker reads Secrets of its pod's namespace.
func (s subject) setPassword(spec *v1alpha1.BGPPeerSpec, p *BGPPeer) {
	const role = "and let speakers read it (docs/tasks/sign-a-bgp-session.md)"
	const where = "the namespace of Fanfare's speakers"
	switch {
	case p.Spec.PasswordSecret.Name != "":
		spec.PasswordSecretRef = &v1alpha1.PasswordSecretRef{Name: p.Spec.PasswordSecret.Name}
		namespace := p.Spec.PasswordSecret.Namespace
		if namespace == "" {
			namespace = "MetalLB's namespace"
		}
		s.todo("spec.passwordSecret", "copy Secret %s from %s to %s, %s", p.Spec.PasswordSecret.Name, namespace, where,
			role)
	case p.Spec.Password != "":
		spec.PasswordSecretRef = &v1alpha1.PasswordSecretRef{Name: PasswordSecret(p.Name)}
		s.todo("spec.password", "put the password into Secret %s of type kubernetes.io/basic-auth in %s, under "+
			"the key password, %s", PasswordSecret(p.Name), where, role)
	}
}

// setBFD copies the profile into the peer: Fanfare has no object for profiles. Times and multiplier
// without a value stay without: the defaults of both are 300 ms and 3.
func (c *converter) setBFD(about subject, spec *v1alpha1.BGPPeerSpec, from *BGPPeerSpec) {
	if from.BFDProfile == "" {
		return
	}
	i := slices.IndexFunc(c.in.BFDProfiles, func(p *BFDProfile) bool { return p.Name == from.BFDProfile })
	switch {
	case i < 0:
		about.lost("spec.bfdProfile", "there is no BFDProfile %s, so the session has no BFD; set spec.bfd",
			from.BFDProfile)
		return
	case from.EBGPMultiHop:
		about.lost("spec.bfdProfile", "Fanfare speaks BFD with directly connected routers only, so the session has "+
			"none; if the router is directly connected, remove ebgpMultihopTTL and set bfd")
		return
	}
	p := c.in.BFDProfiles[i].Spec
	spec.BFD = &v1alpha1.BFD{
		TransmitInterval: milliseconds(p.TransmitInterval), ReceiveInterval: milliseconds(p.ReceiveInterval),
	}
	if p.DetectMultiplier != nil {
		spec.BFD.DetectMultiplier = int32(*p.DetectMultiplier)
	}
	spec.BFD.Passive = p.PassiveMode != nil && *p.PassiveMode
	// What follows concerns the profile, so that the Notes name it. Peers that share a profile
	// repeat them.
	profile := c.about("BFDProfile", from.BFDProfile)
	if p.EchoMode != nil && *p.EchoMode {
		profile.lost("spec.echoMode", "Fanfare has no echo mode for BGPPeer %s; control packets detect a failure "+
			"within receiveInterval × the router's multiplier", about.object.Name.Name)
	}
	if p.EchoInterval != nil {
		profile.lost("spec.echoInterval", "Fanfare has no echo mode, and does not ask for echo packets")
	}
	if p.MinimumTTL != nil {
		profile.lost("spec.minimumTtl", "is for routers that are not directly connected, with which Fanfare has no BFD")
	}
}

func milliseconds(n *uint32) *metav1.Duration {
	if n == nil {
		return nil
	}
	return &metav1.Duration{Duration: time.Duration(*n) * time.Millisecond}
}

// noteFamilies: Fanfare offers both address families in each session (RFC 4760), and the router
// chooses. MetalLB sends the family of the session's addresses, or both on request. Neither field is
// lost: a router that has not activated a family does not receive it.
func (s subject) noteFamilies(from *BGPPeerSpec) {
	switch {
	case from.DisableMP:
		s.todo("spec.disableMP", "is deprecated and has no counterpart: the router receives only the families that "+
			"it activates for this neighbour")
	case from.DualStackAddressFamily:
		s.todo("spec.dualStackAddressFamily",
			"is not needed: Fanfare offers IPv4 and IPv6 in each session, and the router receives what it "+
				"activates for this neighbour")
	}
}
