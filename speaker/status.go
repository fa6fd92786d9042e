package speaker

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/fanfare-lb/fanfare/bgp"
	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/healthcheck"
	"github.com/fanfare-lb/fanfare/internal/membership"
	"github.com/fanfare-lb/fanfare/internal/plan"
	"github.com/fanfare-lb/fanfare/l2"
	"github.com/fanfare-lb/fanfare/proxy"
)

// A Status is what a speaker does and why, for `fanfare status` and programs.
type Status struct {
	Node    string    `json:"node"`
	NodeUID types.UID `json:"nodeUID,omitempty"` // of the Node object, if it exists
	Version string    `json:"version"`
	Started time.Time `json:"started"`
	// Ready: the kernel forwards what is desired, or did once since the start.
	Ready bool `json:"ready"`
	// Behind is when the oldest pending change began to wait.
	Behind *time.Time `json:"behind,omitempty"`
	// Error is of the last pass.
	Error string `json:"error,omitempty"`
	// RunDir is why the cluster's state cannot be saved in the run directory; empty if it can.
	RunDir string `json:"runDirectory,omitempty"`
	// Adopted is the number of addresses that an earlier speaker left in the kernel.
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

// An AddressStatus is the state of one address on this node.
type AddressStatus struct {
	Address   netip.Addr     `json:"address"`
	Pool      string         `json:"pool,omitempty"`
	Services  []string       `json:"services"`
	Ports     []string       `json:"ports,omitempty"`
	Announced bool           `json:"announced"`
	Prefixes  []netip.Prefix `json:"prefixes,omitempty"` // by which it must be announced
	// Attributes are those of the routes, such as "med 10 community 64500:1"; if there are
	// several prefixes, each with its own.
	Attributes []string `json:"attributes,omitempty"`
	// Owner is the node that must answer for the address over L2, and OwnerBy the rule that
	// selected it among the candidates; absent without a candidate or without L2.
	Owner   string `json:"owner,omitempty"`
	OwnerBy string `json:"ownerBy,omitempty"`
	// RedirectsTo is the node that answered for the address before. It receives the
	// connections that are unknown here.
	RedirectsTo string `json:"redirectsTo,omitempty"`
	// L2 is absent if this node does not answer for the address.
	L2 *l2.Status `json:"l2,omitempty"`
	// Weight is for routers with weightByEndpoints; 0: none.
	Weight     uint32         `json:"weight,omitempty"`
	Programmed bool           `json:"programmed"`
	Lingering  *time.Time     `json:"lingeringUntil,omitempty"`
	Reasons    []ReasonStatus `json:"reasons,omitempty"`

	routed bool // announced by BGP
}

// Answered reports whether this node answers for the address over L2.
func (a *AddressStatus) Answered() bool { return a.L2 != nil && a.L2.Phase == l2.Held }

// An L2Status is what a speaker does over L2.
type L2Status struct {
	// Interfaces may answer for addresses.
	Interfaces []l2.Interface `json:"interfaces,omitempty"`
	// Problems block traffic over L2.
	Problems []l2.Problem `json:"problems,omitempty"`
	// AsymmetricPaths exist if replies to clients behind a router leave by another
	// interface than the clients arrive by.
	AsymmetricPaths []l2.AsymmetricPath `json:"asymmetricPaths,omitempty"`
}

// A ReasonStatus is a cluster.Reason for JSON.
type ReasonStatus struct {
	Service  string       `json:"service"`
	Protocol string       `json:"protocol"`
	Code     cluster.Code `json:"code"`
	Message  string       `json:"message"`
}

// A passResult is the state after a pass, for other goroutines. It is immutable.
type passResult struct {
	desired         *plan.Desired             // nil before the first pass
	announced       sortedset.Set[netip.Addr] // by BGP
	bgpLingering    lingeringSet
	l2Lingering     lingeringSet
	l2Statuses      []l2.Status           // read by current
	waitsFor        map[netip.Addr]string // read by current: nodes that must stop first
	redirectsTo     map[netip.Addr]string // the former owners
	l2Problems      []l2.Problem
	asymmetricPaths []l2.AsymmetricPath
	programmed      bool // desired is in the kernel
	ready           bool
	pendingSince    time.Time // start of the first pass without a successor that succeeded, except over L2
	err             error
	failedChecks    []healthcheck.Failure
}

// upToDate reports whether changes are applied in time.
func (p *passResult) upToDate() bool {
	return p.ready && p.late() == ""
}

// late returns since when a change has been waiting, if that is too long.
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

// publish stores the result of a pass.
func (s *speaker) publish(d *plan.Desired, err error) {
	was := s.result.Load()
	now := &passResult{desired: d, err: err, failedChecks: s.failedChecks}
	if d != nil {
		now.announced = s.bgpPath.announcedAddrs
		now.bgpLingering, now.l2Lingering = s.bgpPath.lingering, s.layer2.path.lingering
		now.redirectsTo = s.layer2.redirects.To
		now.l2Problems, now.asymmetricPaths = s.layer2.problems, s.layer2.asymmetric
		now.programmed = s.pass.last == d
		now.ready = was != nil && was.ready || now.programmed
		// Errors over L2 are caused by interfaces or rights. A restart would not correct
		// them, and would disturb BGP.
		if beyondL2(err) && was != nil {
			now.pendingSince = was.pendingSince
		}
	}
	s.result.Store(now)
}

// markStart records the start of a pass, so that the age of a pass that hangs or fails is
// visible.
func (s *speaker) markStart(began time.Time) {
	s.passBegan.Store(&began)
	now := *s.result.Load()
	if now.pendingSince.IsZero() {
		now.pendingSince = began
		s.result.Store(&now)
	}
}

// current returns the result of the last pass, with the present state of L2.
func (s *speaker) current() *passResult {
	p := *s.result.Load()
	p.l2Statuses, p.waitsFor = s.layer2.announcer.Status(), s.layer2.handover.waiting(time.Now())
	return &p
}

// status may be called at any time.
func (s *speaker) status() Status {
	p := s.current()
	st := Status{
		Node: s.Node, Version: s.Version, Started: s.started, Ready: p.ready, Adopted: len(s.adopted),
		BGP: s.bgp.Status(), Proxy: s.proxy.Status(),
	}
	if !p.pendingSince.IsZero() {
		st.Behind = &p.pendingSince
	}
	if p.err != nil {
		st.Error = p.err.Error()
	}
	if err := s.snapshots.Err(); err != nil {
		st.RunDir = err.Error()
	}
	if p.desired == nil {
		st.Members = s.membership.Status(nil)
		return st
	}
	st.Members = s.membership.Status(p.desired.Inputs.Members)
	if n := p.desired.Inputs.Self; n != nil {
		st.NodeUID = n.UID
	}
	if p.desired.UsesL2 {
		st.L2 = L2Status{
			Interfaces: relevantInterfaces(p.desired.Snapshot, s.layer2.announcer.Interfaces()), Problems: p.l2Problems,
			AsymmetricPaths: p.asymmetricPaths,
		}
	}
	st.Problems = append(slices.Clip(p.desired.Snapshot.Problems), p.desired.Inputs.Problems()...)
	for _, r := range p.desired.Snapshot.Refusals {
		st.Waiting = append(st.Waiting, reasonStatus(r))
	}
	st.Waiting = append(st.Waiting, p.healthReasonsWithoutAddress()...)
	st.Addresses = slices.Grow(st.Addresses, p.desired.Addresses.Len())
	for a := range p.desired.Addresses.All() {
		st.Addresses = append(st.Addresses, p.address(a, st.BGP))
	}
	for _, addr := range p.orphans() {
		st.Addresses = append(st.Addresses, p.orphan(addr))
	}
	slices.SortFunc(st.Addresses, func(a, b AddressStatus) int { return a.Address.Compare(b.Address) })
	return st
}

// address combines the decision about an address with its result.
func (p *passResult) address(a *plan.Address, b bgp.Status) AddressStatus {
	reasons, ownerBy := p.desired.Explain(a)
	st := AddressStatus{
		Address: a.Addr, Pool: a.Pool, Owner: a.Owner, OwnerBy: ownerBy, RedirectsTo: p.redirectsTo[a.Addr],
		Programmed: p.programmed && a.Refusal == "",
	}
	st.routed = sortedset.HasAddr(p.announced, a.Addr)
	st.L2 = p.l2StatusOf(a.Addr)
	st.Announced = st.routed || st.Answered()
	if left, _ := p.left(a.Addr); left != nil && !st.Announced && !a.Announce {
		st.Lingering = &left.until
	}
	st.Prefixes = plan.PrefixesOf(a.Routes)
	st.Attributes = p.desired.AttributesOf(st.Prefixes)
	for _, r := range a.Routes {
		st.Weight = max(st.Weight, r.Weight)
	}
	st.Services, st.Ports, st.Reasons = make([]string, 0, len(a.Services)), make([]string, 0, len(a.VIP.Frontends)),
		make([]ReasonStatus, 0, len(reasons))
	for _, name := range a.Services {
		st.Services = append(st.Services, name.String())
	}
	for _, f := range a.VIP.Frontends {
		st.Ports = append(st.Ports, fmt.Sprintf("%s/%d", f.Protocol, f.Port))
	}
	for _, r := range reasons {
		st.Reasons = append(st.Reasons, reasonStatus(p.observed(r, st, b)))
	}
	for _, r := range p.desired.AggregateReasons {
		if r.VIP == a.Addr {
			st.Reasons = append(st.Reasons, reasonStatus(r))
		}
	}
	st.Reasons = append(st.Reasons, p.healthReasons(func(f healthcheck.Failure) bool { return serves(f, a) })...)
	return st
}

// observed replaces the reason of a decision by an obstacle to it, if there is one.
func (p *passResult) observed(r cluster.Reason, st AddressStatus, b bgp.Status) cluster.Reason {
	switch {
	case r.Protocol == "l2":
		return p.observedL2(r, st)
	case r.Code.Forwards() && !p.programmed:
		r.Code, r.Message = cluster.WaitingForProxy, "the kernel does not have this yet"
		if p.err != nil {
			r.Message += ": " + p.err.Error()
		}
	case r.Code == cluster.ToAnnounce && !st.routed:
		r.Code, r.Message = cluster.WaitingForProxy, "not announced yet: the kernel does not forward it"
		if p.programmed {
			r.Code, r.Message = cluster.WaitingForSession, "not announced: "+p.whyNotAnnounced(st.Address, b)
		}
	case r.Code == cluster.ToAnnounce:
		receiving, missing := receivers(st.Address, p.desired.RoutesOf(st.Address), b.Sessions)
		switch {
		case len(receiving) == 0:
			r.Code, r.Message = cluster.WaitingForSession, "no router has the route: "+strings.Join(missing, "; ")
		case len(missing) > 0:
			r.Code, r.Message = cluster.Announced,
				fmt.Sprintf("announced to %s, %s; not received by %s", strings.Join(receiving, ", "), r.Message,
					strings.Join(missing, "; nor by "))
		default:
			r.Code, r.Message = cluster.Announced, asAnnounced(r.Message)
		}
	case st.Lingering != nil && r.Protocol == "bgp":
		if left := p.bgpLingering.find(st.Address); left != nil {
			r.Message += fmt.Sprintf("; forwarded until %s for routers that still have the route",
				left.until.Format(time.TimeOnly))
		}
	}
	return r
}

// observedL2 is observed for L2.
func (p *passResult) observedL2(r cluster.Reason, st AddressStatus) cluster.Reason {
	switch {
	case r.Code != cluster.ToAnnounce:
		if st.Answered() { // for other Services
			r.Message = asAnnounced(r.Message)
		}
		if left := p.l2Lingering.find(st.Address); left != nil {
			r.Message += fmt.Sprintf("; forwarded until %s for neighbours that still send here",
				left.until.Format(time.TimeOnly))
		}
	case p.waitsFor[st.Address] != "":
		r.Code, r.Message = cluster.WaitingForRelease,
			fmt.Sprintf("not announced yet: waits for node %s to stop", p.waitsFor[st.Address])
	case st.L2 == nil:
		r.Code, r.Message = cluster.WaitingForProxy, "not announced yet: the kernel does not forward it"
		if p.programmed {
			r.Code, r.Message = cluster.WaitingForNodes,
				"not announced yet: other nodes whose state has not arrived may answer for it"
		}
	case st.L2.Phase == l2.Probing:
		r.Code, r.Message = cluster.WaitingForProbe, "not announced yet: probing whether another host uses it"
	case st.L2.Phase == l2.Conflicting:
		r.Code, r.Message = cluster.AddressInUse, "not announced: "+st.L2.Reason
	case st.L2.Phase == l2.Waiting:
		r.Code, r.Message = cluster.NoInterface, "not announced: "+st.L2.Reason
	default:
		r.Code, r.Message = cluster.Announced, asAnnounced(r.Message)
	}
	return r
}

// asAnnounced turns the message about what is wanted into one about what is so.
func asAnnounced(message string) string {
	if rest, ok := strings.CutPrefix(message, plan.Wanted); ok {
		return "announced " + rest
	}
	return message
}

// l2StatusOf returns the L2 state of an address, nil if there is none.
func (p *passResult) l2StatusOf(addr netip.Addr) *l2.Status {
	i, ok := slices.BinarySearchFunc(p.l2Statuses, addr,
		func(s l2.Status, a netip.Addr) int { return s.Addr.Compare(a) })
	if !ok {
		return nil
	}
	return &p.l2Statuses[i]
}

// whyNotAnnounced returns why BGP does not announce an address that it should.
func (p *passResult) whyNotAnnounced(addr netip.Addr, b bgp.Status) string {
	for _, s := range b.Sessions {
		for _, o := range s.Omissions {
			if o.Prefix.Contains(addr) {
				return fmt.Sprintf("router %s cannot receive it: %s", s.Name, o.Reason)
			}
		}
	}
	if p.err != nil {
		return p.err.Error()
	}
	return "no session can advertise it"
}

// receivers divides the routers of an address into those with its route, and the others,
// each with the reason.
func receivers(addr netip.Addr, routes []bgp.Route, sessions []bgp.SessionStatus) (receiving, missing []string) {
	for _, s := range sessions {
		if !slices.ContainsFunc(routes, func(r bgp.Route) bool { return r.Peers.Has(s.Name) }) {
			continue
		}
		i := slices.IndexFunc(s.Omissions, func(o bgp.Omission) bool { return o.Prefix.Contains(addr) })
		switch {
		case s.State != bgp.Established:
			missing = append(missing, fmt.Sprintf("%s (%s): %s", s.Name, s.State, s.DownReason()))
		case i >= 0:
			missing = append(missing, fmt.Sprintf("%s: %s", s.Name, s.Omissions[i].Reason))
		default:
			receiving = append(receiving, s.Name)
		}
	}
	return receiving, missing
}

// left returns the lingering address that is forwarded longest, and by which protocol it was announced;
// nil: the address does not linger.
func (p *passResult) left(addr netip.Addr) (left *lingeringAddress, protocol string) {
	left, protocol = p.bgpLingering.find(addr), "bgp"
	if l := p.l2Lingering.find(addr); l != nil && (left == nil || left.until.Before(l.until)) {
		left, protocol = l, "l2"
	}
	return left, protocol
}

// orphans returns addresses that no Service holds and that are still forwarded.
func (p *passResult) orphans() (orphans []netip.Addr) {
	for _, l := range slices.Concat(p.bgpLingering, p.l2Lingering) {
		if p.desired.Address(l.addr) == nil {
			orphans = append(orphans, l.addr)
		}
	}
	slices.SortFunc(orphans, netip.Addr.Compare)
	return slices.Compact(orphans)
}

// orphan returns the status of an address without a Service. Its pool and ports are unknown.
func (p *passResult) orphan(addr netip.Addr) AddressStatus {
	left, protocol := p.left(addr)
	message := "no Service holds it now"
	if left.adopted {
		message = "an earlier speaker forwarded it, and no Service holds it now"
	}
	st := AddressStatus{Address: addr, Services: []string{}, Programmed: p.programmed, Lingering: &left.until}
	for _, name := range left.services {
		st.Services = append(st.Services, name.String())
	}
	st.Reasons = []ReasonStatus{{Protocol: protocol, Code: cluster.Lingering,
		Message: fmt.Sprintf("%s; connections are rejected until %s", message, left.until.Format(time.TimeOnly))}}
	return st
}

func reasonStatus(r cluster.Reason) ReasonStatus {
	return ReasonStatus{Service: r.Service.String(), Protocol: r.Protocol, Code: r.Code, Message: r.Message}
}
