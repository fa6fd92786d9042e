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
	L2        LinkStatus        `json:"l2,omitzero"`
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
	// HandsOn is the node that this one hands connections on to that are unknown here: it
	// answered for the address before.
	HandsOn string `json:"handsOn,omitempty"`
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

// A ReasonStatus is a cluster.Reason for JSON.
type ReasonStatus struct {
	Service  string       `json:"service"`
	Protocol string       `json:"protocol"`
	Code     cluster.Code `json:"code"`
	Message  string       `json:"message"`
}

// published is what the loop leaves behind after a pass for whoever asks. It is
// never written again.
type published struct {
	desired    *plan.Desired // nil before the first pass
	have       []netip.Addr
	departed   map[netip.Addr]departure
	parted     map[netip.Addr]departure // departed from L2
	answers    []l2.Status              // at the time of asking
	waits      map[netip.Addr]string    // for the nodes that have to stop first; as answers
	handsOn    map[netip.Addr]string    // the node that answered for it before
	problems   []l2.Problem
	detours    []l2.AsymmetricPath
	programmed bool // desired is in the kernel
	ready      bool
	behind     time.Time // when the first pass began that has not succeeded since, but perhaps over L2
	err        error
	unanswered []healthcheck.Failure
}

// upToDate says that no change has waited for long, if any was ever made.
func (p *published) upToDate() bool {
	return p.ready && p.late() == ""
}

// late says since when a change has waited, if that is long.
func (p *published) late() string {
	if p.behind.IsZero() || time.Since(p.behind) <= lateAfter {
		return ""
	}
	text := "a change has been waiting since " + p.behind.UTC().Format(time.RFC3339)
	if p.err != nil {
		text += ": " + plan.OneLine(p.err)
	}
	return text
}

// publish leaves behind what the last pass achieved.
func (s *speaker) publish(d *plan.Desired, err error) {
	was := s.published.Load()
	now := &published{desired: d, err: err, unanswered: s.unanswered}
	if d != nil {
		now.have = s.routes.have
		now.departed, now.parted = maps.Clone(s.routes.departed), maps.Clone(s.links.way.departed)
		now.handsOn = s.links.handed.to
		now.problems, now.detours = s.links.problems, s.links.detours
		now.programmed = s.pass.last == d
		now.ready = was != nil && was.ready || now.programmed
		// What L2 cannot do is the interfaces' fault or the rights': a restart would mend
		// neither, and disturb what goes over BGP.
		if beyondL2(err) && was != nil {
			now.behind = was.behind
		}
	}
	s.published.Store(now)
}

// busy marks the start of a pass, so that one that hangs or fails shows by its
// age. The end of the pass is marked in passing.
func (s *speaker) busy(began time.Time) {
	s.passing.Store(&began)
	now := *s.published.Load()
	if now.behind.IsZero() {
		now.behind = began
		s.published.Store(&now)
	}
}

// now is what the last pass left behind, with what has become of it over L2 since.
func (s *speaker) now() *published {
	p := *s.published.Load()
	p.answers, p.waits = s.links.announcer.Status(), s.links.holds.waiting(time.Now())
	return &p
}

// Status says what the speaker does now. It may be called at any time.
func (s *speaker) status() Status {
	p := s.now()
	st := Status{Node: s.Node, Version: s.Version, Started: s.started, Ready: p.ready, Adopted: len(s.adopted), BGP: s.bgp.Status(), Proxy: s.proxy.Status()}
	if !p.behind.IsZero() {
		st.Behind = &p.behind
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
	if p.desired.UsesL2 {
		st.L2 = LinkStatus{Interfaces: relevant(p.desired.Snapshot, s.links.announcer.Interfaces()), Problems: p.problems, Detours: p.detours}
	}
	st.Problems = append(slices.Clip(p.desired.Snapshot.Problems), p.desired.View.Problems()...)
	for _, r := range p.desired.Snapshot.Refusals {
		st.Waiting = append(st.Waiting, reasonStatus(r))
	}
	st.Waiting = append(st.Waiting, p.unansweredNowhere()...)
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
func (p *published) address(a *plan.Address, b bgp.Status) AddressStatus {
	st := AddressStatus{Address: a.Addr, Pool: a.Pool, Owner: a.Owner, OwnerBy: a.OwnerBy, HandsOn: p.handsOn[a.Addr], Programmed: p.programmed && a.Refusal == ""}
	_, st.routed = slices.BinarySearchFunc(p.have, a.Addr, netip.Addr.Compare)
	st.L2 = p.on(a.Addr)
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
	for _, r := range p.desired.AggregateReasons {
		if r.VIP == a.Addr {
			st.Reasons = append(st.Reasons, reasonStatus(r))
		}
	}
	for _, name := range a.Services {
		st.Reasons = append(st.Reasons, p.unansweredAt(a.Addr, name)...)
	}
	return st
}

// observed replaces a reason that says what is meant by one that says what is in
// the way, where something is.
func (p *published) observed(r cluster.Reason, st AddressStatus, b bgp.Status) cluster.Reason {
	switch {
	case r.Protocol == "l2":
		return p.observedLinks(r, st)
	case r.Code.Forwards() && !p.programmed:
		r.Code, r.Message = cluster.WaitingForProxy, "the kernel does not have this yet"
		if p.err != nil {
			r.Message += ": " + p.err.Error()
		}
	case r.Code == cluster.Announced && !st.routed:
		r.Code, r.Message = cluster.WaitingForProxy, "not announced yet: the kernel does not forward it"
		if p.programmed {
			r.Code, r.Message = cluster.WaitingForSession, "not announced: "+p.obstacle(st.Address, b)
		}
	case r.Code == cluster.Announced && r.Protocol == "bgp":
		heard, deaf := audience(st.Address, p.desired.RoutesOf(st.Address), b.Sessions)
		switch {
		case len(heard) == 0:
			r.Code, r.Message = cluster.WaitingForSession, "no router hears it: "+strings.Join(deaf, "; ")
		case len(deaf) > 0:
			r.Message += "; not heard by " + strings.Join(deaf, "; nor by ")
		}
	case st.Lingering != nil && r.Protocol == "bgp":
		if left, ok := p.departed[st.Address]; ok {
			r.Message += fmt.Sprintf("; forwarded until %s for routers that have not heard", left.until.Format(time.TimeOnly))
		}
	}
	return r
}

// obstacle is why BGP does not announce an address that it should.
func (p *published) obstacle(addr netip.Addr, b bgp.Status) string {
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

// audience parts the routers that routes to an address are for: into the names of those
// that hear of it, and the others, each with what is in the way.
func audience(addr netip.Addr, routes []bgp.Route, sessions []bgp.SessionStatus) (heard, deaf []string) {
	for _, s := range sessions {
		if !slices.ContainsFunc(routes, func(r bgp.Route) bool { return r.Peers.Has(s.Name) }) {
			continue
		}
		i := slices.IndexFunc(s.Omissions, func(o bgp.Omission) bool { return o.Prefix.Contains(addr) })
		switch {
		case s.State != bgp.Established:
			deaf = append(deaf, fmt.Sprintf("%s (%s): %s", s.Name, s.State, s.Trouble()))
		case i >= 0:
			deaf = append(deaf, fmt.Sprintf("%s: %s", s.Name, s.Omissions[i].Reason))
		default:
			heard = append(heard, s.Name)
		}
	}
	return heard, deaf
}

// lingering is until when an address that left the network is forwarded, nil when it is
// not.
func (p *published) lingering(addr netip.Addr) (until *time.Time) {
	for _, parted := range []map[netip.Addr]departure{p.departed, p.parted} {
		if left, ok := parted[addr]; ok && (until == nil || until.Before(left.until)) {
			until = &left.until
		}
	}
	return until
}

// orphans are the addresses that nobody holds any more and that are still
// forwarded.
func (p *published) orphans() []netip.Addr {
	var orphans []netip.Addr
	for _, parted := range []map[netip.Addr]departure{p.departed, p.parted} {
		for a := range parted {
			if p.desired.Address(a) == nil && !slices.Contains(orphans, a) {
				orphans = append(orphans, a)
			}
		}
	}
	return orphans
}

func (p *published) orphan(addr netip.Addr) AddressStatus {
	left, protocol := p.departed[addr], "bgp"
	if parted, ok := p.parted[addr]; ok && left.until.Before(parted.until) {
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
