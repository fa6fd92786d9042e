package speaker

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/fanfare-lb/fanfare/bgp"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/healthcheck"
	"github.com/fanfare-lb/fanfare/internal/membership"
	"github.com/fanfare-lb/fanfare/internal/plan"
	"github.com/fanfare-lb/fanfare/l2"
	"github.com/fanfare-lb/fanfare/proxy"
)

// A Status is what a speaker does and why, for people and programs.
type Status struct {
	Node    string    `json:"node"`
	NodeUID types.UID `json:"nodeUID,omitempty"` // of the Node object; absent when there is none
	Version string    `json:"version"`
	Started time.Time `json:"started"`
	// Ready: the kernel forwards what is desired, or has once since the start.
	Ready bool `json:"ready"`
	// Behind is since when a change has been waiting to be applied, absent when
	// none is.
	Behind *time.Time `json:"behind,omitempty"`
	// Error is what went wrong in the last pass, empty when nothing did.
	Error string `json:"error,omitempty"`
	// Adopted is how many addresses an earlier speaker had left in the kernel.
	Adopted int `json:"adopted,omitempty"`

	// Members are the speakers of other nodes; absent without --members-key-file.
	Members *membership.Status `json:"members,omitempty"`

	BGP       bgp.Status        `json:"bgp"`
	L2        L2Status          `json:"l2,omitzero"`
	Proxy     proxy.Status      `json:"proxy"`
	Addresses []AddressStatus   `json:"addresses"`
	Waiting   []ReasonStatus    `json:"withoutAddress,omitempty"`
	Problems  []cluster.Problem `json:"problems,omitempty"`
}

// An AddressStatus is what happens to one address on this node.
type AddressStatus struct {
	Address   netip.Addr     `json:"address"`
	Pool      string         `json:"pool,omitempty"`
	Services  []string       `json:"services"`
	Ports     []string       `json:"ports,omitempty"`
	Announced bool           `json:"announced"`
	Prefixes  []netip.Prefix `json:"prefixes,omitempty"` // that it is to be announced by
	// Attributes are what routers are told of them, such as "med 10 community 64500:1";
	// of several prefixes, each with its own.
	Attributes []string `json:"attributes,omitempty"`
	// Owner is the node that is to answer for it over L2, and OwnerBy what decided between
	// the candidates; absent where no node can, or it does not go over L2.
	Owner   string `json:"owner,omitempty"`
	OwnerBy string `json:"ownerBy,omitempty"`
	// RedirectsTo is the node that this one hands connections on to that are unknown here: it
	// answered for the address before.
	RedirectsTo string `json:"handsOn,omitempty"`
	// L2 is how far this node has come to answer for it; absent where it does not.
	L2 *l2.Status `json:"l2,omitempty"`
	// Weight is what routers with weightByEndpoints are to be told; 0: none.
	Weight     uint32         `json:"weight,omitempty"`
	Programmed bool           `json:"programmed"`
	Lingering  *time.Time     `json:"lingeringUntil,omitempty"`
	Reasons    []ReasonStatus `json:"reasons,omitempty"`

	routed bool // announced by BGP
}

// Answered says whether this node answers for the address over L2.
func (a *AddressStatus) Answered() bool { return a.L2 != nil && a.L2.Phase == l2.Held }

// A L2Status is what a speaker does over L2.
type L2Status struct {
	// Interfaces are those on which addresses may be answered for.
	Interfaces []l2.Interface `json:"interfaces,omitempty"`
	// Problems are what is in the way of traffic that comes over L2.
	Problems []l2.Problem `json:"problems,omitempty"`
	// AsymmetricPaths are where answers to clients behind a router leave by another interface than
	// the clients come by.
	AsymmetricPaths []l2.AsymmetricPath `json:"detours,omitempty"`
}

// A ReasonStatus is a cluster.Reason for JSON.
type ReasonStatus struct {
	Service  string       `json:"service"`
	Protocol string       `json:"protocol"`
	Code     cluster.Code `json:"code"`
	Message  string       `json:"message"`
}

// passResult is what the loop leaves behind after a pass for whoever asks. It is
// never written again.
type passResult struct {
	desired         *plan.Desired // nil before the first pass
	bgpAddrs        []netip.Addr
	bgpLingering    map[netip.Addr]lingeringAddress
	l2Lingering     map[netip.Addr]lingeringAddress // departed from L2
	l2Statuses      []l2.Status                     // at the time of asking
	waitsFor        map[netip.Addr]string           // for the nodes that have to stop first; as answers
	redirectsTo     map[netip.Addr]string           // the node that answered for it before
	l2Problems      []l2.Problem
	asymmetricPaths []l2.AsymmetricPath
	programmed      bool // desired is in the kernel
	ready           bool
	pendingSince    time.Time // when the first pass began that has not succeeded since, but perhaps over L2
	err             error
	failedChecks    []healthcheck.Failure
}

// upToDate says that no change has waited for long, if any was ever made.
func (p *passResult) upToDate() bool {
	return p.ready && p.late() == ""
}

// late says since when a change has waited, if that is long.
func (p *passResult) late() string {
	if p.pendingSince.IsZero() || time.Since(p.pendingSince) <= lateThreshold {
		return ""
	}
	text := "a change has been waiting since " + p.pendingSince.UTC().Format(time.RFC3339)
	if p.err != nil {
		text += ": " + plan.OneLine(p.err)
	}
	return text
}

// publish leaves behind what the last pass achieved.
func (s *speaker) publish(d *plan.Desired, err error) {
	was := s.result.Load()
	now := &passResult{desired: d, err: err, failedChecks: s.failedChecks}
	if d != nil {
		now.bgpAddrs = s.bgpPath.announcedAddrs
		now.bgpLingering, now.l2Lingering = maps.Clone(s.bgpPath.lingering), maps.Clone(s.layer2.path.lingering)
		now.redirectsTo = s.layer2.redirects.owners
		now.l2Problems, now.asymmetricPaths = s.layer2.problems, s.layer2.asymmetric
		now.programmed = s.pass.last == d
		now.ready = was != nil && was.ready || now.programmed
		// What L2 cannot do is the interfaces' fault or the rights': a restart would mend
		// neither, and disturb what goes over BGP.
		if beyondL2(err) && was != nil {
			now.pendingSince = was.pendingSince
		}
	}
	s.result.Store(now)
}

// markStart marks the start of a pass, so that one that hangs or fails shows by its
// age. The end of the pass is marked in passing.
func (s *speaker) markStart(began time.Time) {
	s.passBegan.Store(&began)
	now := *s.result.Load()
	if now.pendingSince.IsZero() {
		now.pendingSince = began
		s.result.Store(&now)
	}
}

// current is what the last pass left behind, with what has become of it over L2 since.
func (s *speaker) current() *passResult {
	p := *s.result.Load()
	p.l2Statuses, p.waitsFor = s.layer2.announcer.Status(), s.layer2.handover.waiting(time.Now())
	return &p
}

// Status says what the speaker does now. It may be called at any time.
func (s *speaker) status() Status {
	p := s.current()
	st := Status{Node: s.Node, Version: s.Version, Started: s.started, Ready: p.ready, Adopted: len(s.adopted), BGP: s.bgp.Status(), Proxy: s.proxy.Status()}
	if !p.pendingSince.IsZero() {
		st.Behind = &p.pendingSince
	}
	if p.err != nil {
		st.Error = p.err.Error()
	}
	if p.desired == nil {
		st.Members = s.membership.Status(nil)
		return st
	}
	st.Members = s.membership.Status(p.desired.View.Members)
	if n := p.desired.View.Self; n != nil {
		st.NodeUID = n.UID
	}
	if p.desired.Links {
		st.L2 = L2Status{Interfaces: relevantInterfaces(p.desired.Snapshot, s.layer2.announcer.Interfaces()), Problems: p.l2Problems, AsymmetricPaths: p.asymmetricPaths}
	}
	st.Problems = append(slices.Clip(p.desired.Snapshot.Problems), p.desired.View.Problems()...)
	for _, r := range p.desired.Snapshot.Refusals {
		st.Waiting = append(st.Waiting, reasonStatus(r))
	}
	st.Waiting = append(st.Waiting, p.healthReasonsWithoutAddress()...)
	st.Addresses = slices.Grow(st.Addresses, len(p.desired.Addresses))
	for _, a := range p.desired.Addresses {
		st.Addresses = append(st.Addresses, p.address(a, st.BGP))
	}
	for _, addr := range p.orphans() {
		st.Addresses = append(st.Addresses, p.orphan(addr))
	}
	slices.SortFunc(st.Addresses, func(a, b AddressStatus) int { return a.Address.Compare(b.Address) })
	return st
}

// address combines what was decided for an address with what came of it.
func (p *passResult) address(a *plan.Address, b bgp.Status) AddressStatus {
	st := AddressStatus{Address: a.Addr, Pool: a.Pool, Owner: a.Owner, OwnerBy: a.OwnerBy, RedirectsTo: p.redirectsTo[a.Addr], Programmed: p.programmed && a.Refusal == ""}
	_, st.routed = slices.BinarySearchFunc(p.bgpAddrs, a.Addr, netip.Addr.Compare)
	st.L2 = p.l2StatusOf(a.Addr)
	if st.Announced = st.routed || st.Answered(); !st.Announced && !a.Announce {
		st.Lingering = p.lingering(a.Addr)
	}
	st.Prefixes = plan.PrefixesOf(a.Routes)
	st.Attributes = p.desired.AttributesOf(st.Prefixes)
	for _, r := range a.Routes {
		st.Weight = max(st.Weight, r.Weight)
	}
	st.Services, st.Ports, st.Reasons = make([]string, 0, len(a.Services)), make([]string, 0, len(a.VIP.Frontends)), make([]ReasonStatus, 0, len(a.Reasons))
	for _, name := range a.Services {
		st.Services = append(st.Services, name.String())
	}
	for _, f := range a.VIP.Frontends {
		st.Ports = append(st.Ports, fmt.Sprintf("%s/%d", f.Protocol, f.Port))
	}
	for _, r := range a.Reasons {
		st.Reasons = append(st.Reasons, reasonStatus(p.observed(r, st, b)))
	}
	for _, r := range p.desired.Clashes {
		if r.VIP == a.Addr {
			st.Reasons = append(st.Reasons, reasonStatus(r))
		}
	}
	for _, name := range a.Services {
		st.Reasons = append(st.Reasons, p.healthReasons(a.Addr, name)...)
	}
	return st
}

// observed replaces a reason that says what is meant by one that says what is in
// the way, where something is.
func (p *passResult) observed(r cluster.Reason, st AddressStatus, b bgp.Status) cluster.Reason {
	switch {
	case r.Protocol == "l2":
		return p.observedL2(r, st)
	case r.Code.Forwards() && !p.programmed:
		r.Code, r.Message = cluster.WaitingForProxy, "the kernel does not have this yet"
		if p.err != nil {
			r.Message += ": " + p.err.Error()
		}
	case r.Code == cluster.Announced && !st.routed:
		r.Code, r.Message = cluster.WaitingForProxy, "not announced yet: the kernel does not forward it"
		if p.programmed {
			r.Code, r.Message = cluster.WaitingForSession, "not announced: "+p.whyNotAnnounced(st.Address, b)
		}
	case r.Code == cluster.Announced && r.Protocol == "bgp":
		receiving, missing := receivers(st.Address, p.desired.RoutesOf(st.Address), b.Sessions)
		switch {
		case len(receiving) == 0:
			r.Code, r.Message = cluster.WaitingForSession, "no router hears it: "+strings.Join(missing, "; ")
		case len(missing) > 0:
			r.Message += "; not heard by " + strings.Join(missing, "; nor by ")
		}
	case st.Lingering != nil && r.Protocol == "bgp":
		if left, ok := p.bgpLingering[st.Address]; ok {
			r.Message += fmt.Sprintf("; forwarded until %s for routers that have not heard", left.until.Format(time.TimeOnly))
		}
	}
	return r
}

// observedL2 is observed for what goes over L2.
func (p *passResult) observedL2(r cluster.Reason, st AddressStatus) cluster.Reason {
	switch {
	case r.Code != cluster.Announced:
		if left, ok := p.l2Lingering[st.Address]; ok {
			r.Message += fmt.Sprintf("; forwarded until %s for neighbours that have not heard", left.until.Format(time.TimeOnly))
		}
	case p.waitsFor[st.Address] != "":
		r.Code, r.Message = cluster.WaitingForRelease, fmt.Sprintf("not announced yet: waits for node %s to stop", p.waitsFor[st.Address])
	case st.L2 == nil:
		r.Code, r.Message = cluster.WaitingForProxy, "not announced yet: the kernel does not forward it"
		if p.programmed {
			r.Code, r.Message = cluster.WaitingForNodes, "not announced yet: other nodes may answer for it that are not heard of yet"
		}
	case st.L2.Phase == l2.Probing:
		r.Code, r.Message = cluster.WaitingForProbe, "not announced yet: the link is asked whether somebody uses it"
	case st.L2.Phase == l2.Conflicting:
		r.Code, r.Message = cluster.AddressInUse, "not announced: "+st.L2.Reason
	case st.L2.Phase == l2.Waiting:
		r.Code, r.Message = cluster.NoInterface, "not announced: "+st.L2.Reason
	}
	return r
}

// l2StatusOf says what became of an address over L2.
func (p *passResult) l2StatusOf(addr netip.Addr) *l2.Status {
	i, ok := slices.BinarySearchFunc(p.l2Statuses, addr, func(s l2.Status, a netip.Addr) int { return s.Addr.Compare(a) })
	if !ok {
		return nil
	}
	return &p.l2Statuses[i]
}

// whyNotAnnounced is why BGP does not announce an address that it should.
func (p *passResult) whyNotAnnounced(addr netip.Addr, b bgp.Status) string {
	for _, s := range b.Sessions {
		for _, o := range s.Omissions {
			if o.Prefix.Contains(addr) {
				return fmt.Sprintf("router %s cannot be told: %s", s.Name, o.Reason)
			}
		}
	}
	if p.err != nil {
		return p.err.Error()
	}
	return "no session can carry it"
}

// receivers parts the routers that routes to an address are for: into the names of those
// that hear of it, and the others, each with what is in the way.
func receivers(addr netip.Addr, routes []bgp.Route, sessions []bgp.SessionStatus) (receiving, missing []string) {
	for _, s := range sessions {
		if !slices.ContainsFunc(routes, func(r bgp.Route) bool { return r.Peers.Has(s.Name) }) {
			continue
		}
		i := slices.IndexFunc(s.Omissions, func(o bgp.Omission) bool { return o.Prefix.Contains(addr) })
		switch {
		case s.State != bgp.Established:
			missing = append(missing, fmt.Sprintf("%s (%s): %s", s.Name, s.State, s.Trouble()))
		case i >= 0:
			missing = append(missing, fmt.Sprintf("%s: %s", s.Name, s.Omissions[i].Reason))
		default:
			receiving = append(receiving, s.Name)
		}
	}
	return receiving, missing
}

// lingering is until when an address that left the network is forwarded, nil when it is
// not.
func (p *passResult) lingering(addr netip.Addr) (until *time.Time) {
	for _, parted := range []map[netip.Addr]lingeringAddress{p.bgpLingering, p.l2Lingering} {
		if left, ok := parted[addr]; ok && (until == nil || until.Before(left.until)) {
			until = &left.until
		}
	}
	return until
}

// orphans are the addresses that nobody holds any more and that are still
// forwarded.
func (p *passResult) orphans() []netip.Addr {
	var orphans []netip.Addr
	for _, parted := range []map[netip.Addr]lingeringAddress{p.bgpLingering, p.l2Lingering} {
		for a := range parted {
			if p.desired.Address(a) == nil && !slices.Contains(orphans, a) {
				orphans = append(orphans, a)
			}
		}
	}
	return orphans
}

func (p *passResult) orphan(addr netip.Addr) AddressStatus {
	left, protocol := p.bgpLingering[addr], "bgp"
	if parted, ok := p.l2Lingering[addr]; ok && left.until.Before(parted.until) {
		left, protocol = parted, "l2"
	}
	message := "no Service holds it any more"
	if left.adopted {
		message = "an earlier speaker forwarded it and no Service holds it now"
	}
	st := AddressStatus{Address: addr, Services: []string{}, Programmed: p.programmed, Lingering: &left.until}
	for _, name := range left.owners {
		st.Services = append(st.Services, name.String())
	}
	st.Reasons = []ReasonStatus{{Protocol: protocol, Code: cluster.Lingering, Message: fmt.Sprintf("%s; refused until %s, then forgotten", message, left.until.Format(time.TimeOnly))}}
	return st
}

func reasonStatus(r cluster.Reason) ReasonStatus {
	return ReasonStatus{Service: r.Service.String(), Protocol: r.Protocol, Code: r.Code, Message: r.Message}
}
