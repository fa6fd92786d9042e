package proxy

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/nfnl"
)

// From linux/netfilter/nfnetlink_conntrack.h and nf_conntrack_common.h, which
// x/sys does not have.
const (
	ctGet    = 1 // IPCTNL_MSG_CT_GET
	ctDelete = 2 // IPCTNL_MSG_CT_DELETE

	ctaTupleOrig  = 1
	ctaTupleReply = 2
	ctaStatus     = 3
	ctaProtoInfo  = 4
	ctaID         = 12
	ctaZone       = 18
	ctaFilter     = 25
	ctaStatusMask = 26

	ctaTupleIP    = 1
	ctaTupleProto = 2
	ctaIPv4Src    = 1
	ctaIPv4Dst    = 2
	ctaIPv6Src    = 3
	ctaIPv6Dst    = 4
	ctaProtoNum   = 1
	ctaProtoSrc   = 2
	ctaProtoDst   = 3

	ctaProtoInfoTCP              = 1
	ctaProtoInfoTCPState         = 1
	ctaProtoInfoTCPFlagsOriginal = 4
	ctaProtoInfoTCPFlagsReply    = 5

	ctaFilterOrigFlags = 1
	ctaFilterIPDst     = 1 << 1

	ipsSeenReply = 1 << 1 // IPS_SEEN_REPLY: packets went both ways
	ipsDstNAT    = 1 << 5 // IPS_DST_NAT: the destination was rewritten
)

// A port is a protocol and a port of an address.
type port struct {
	proto Protocol
	port  uint16
}

// sides says for which kinds of clients something holds.
type sides uint8

const (
	sideExternal sides = 1 << iota
	sideInternal
)

// A purge says, by VIP, which conntrack entries a change has made wrong. NAT
// is decided once for each entry, so without this they would outlive the rules
// that they were born under for as long as packets come.
type purge map[netip.Addr]*vipPurge

type vipPurge struct {
	// born: the VIP is new. Entries to it that were not rewritten go, of
	// whatever protocol: they send the client's packets past the rules, and in
	// a loop between here and the router.
	born bool
	// left: the address is no longer a VIP. If it is still one of Owned, entries that remain in
	// conntrack would misdirect the clients of the next Service that gets it.
	left bool
	// ports are frontends that are new at a VIP that is not.
	ports map[port]bool
	// fenced are frontends that fewer sources may use than before. Their flows of
	// others go.
	fenced map[port]bool
	// filled are frontends that have a backend again. Flows of protocols that
	// have no end of their own leave what drains, where they had stayed for
	// want of a better place.
	filled map[port]bool
	// gone are backends that no longer get new flows. Entries of protocols that
	// have no end of their own would keep sending there, and so would those of TCP
	// that wait for a first answer: each SYN of that client's port, for 120 s after
	// the last one. Others of TCP go when no frontend has the backend.
	gone map[goneBackend]sides
	// orphaned are frontends of a table that was found: the process that wrote it may have
	// ended between a change and its sweep. Their flows to unknown backends go.
	orphaned map[port]bool
}

type goneBackend struct {
	port
	backend netip.AddrPort
}

func (p purge) at(vip netip.Addr) *vipPurge {
	v := p[vip]
	if v == nil {
		v = &vipPurge{ports: make(map[port]bool), fenced: make(map[port]bool), filled: make(map[port]bool), gone: make(map[goneBackend]sides), orphaned: make(map[port]bool)}
		p[vip] = v
	}
	return v
}

func (v *vipPurge) empty() bool {
	return !v.born && !v.left && len(v.ports) == 0 && len(v.fenced) == 0 && len(v.filled) == 0 && len(v.gone) == 0 && len(v.orphaned) == 0
}

// planPurge derives from a change of elements what it makes wrong.
func planPurge(c change) purge {
	p := make(purge)
	before := make(map[element]bool) // the keys that existed
	for _, e := range c.del {
		before[element{set: e.set, key: e.key}] = true
		p.removed(e)
		p.narrowed(e, base(e.set) == setAllowed)
	}
	for _, e := range c.add {
		p.kept(e)
		p.narrowed(e, e.data == external.fence || e.data == internal.fence)
		if !before[element{set: e.set, key: e.key}] {
			p.appeared(e)
		}
	}
	for vip, v := range p {
		for b, s := range v.gone {
			if s == 0 {
				delete(v.gone, b)
			}
		}
		if v.empty() {
			delete(p, vip)
		}
	}
	return p
}

// orphan notes the frontends of a table that was found.
func (p purge) orphan(had []element) {
	for _, e := range had {
		if s := base(e.set); s == setExtSvc || s == setIntSvc {
			vip, proto, n := frontendOf(e.set, e.key)
			p.at(vip).orphaned[port{proto, n}] = true
		}
	}
}

// narrowed notes, if it is so, that fewer sources may use the frontend of e.
func (p purge) narrowed(e element, is bool) {
	if is {
		vip, proto, n := frontendOf(e.set, e.key)
		p.at(vip).fenced[port{proto, n}] = true
	}
}

// appeared notes a new VIP or frontend.
func (p purge) appeared(e element) {
	switch base(e.set) {
	case setVIPs:
		vip, _ := netip.AddrFromSlice([]byte(e.key))
		p.at(vip).born = true
	case setExtSvc, setIntSvc:
		vip, proto, n := frontendOf(e.set, e.key)
		p.at(vip).ports[port{proto, n}] = true
	case setExtEps, setIntEps:
		vip, proto, n := frontendOf(e.set, e.key)
		if proto != TCP && strings.HasSuffix(e.key, firstSlot) {
			p.at(vip).filled[port{proto, n}] = true
		}
	default: // the others follow from these
	}
}

// firstSlot is the end of the key of a frontend's first slot.
var firstSlot = string(encoding(nil).slot(0))

// removed records that a backend has left a slot or stopped draining, and kept
// that it is in another slot.
func (p purge) removed(e element) {
	if base(e.set) == setVIPs {
		vip, _ := netip.AddrFromSlice([]byte(e.key))
		p.at(vip).left = true
	}
	if vip, b, s := slotOf(e); s != 0 {
		p.at(vip).gone[b] |= s
	}
}

func (p purge) kept(e element) {
	if base(e.set) == setDrain {
		return // it gets no new flows, and what it keeps is for wrong to say
	}
	vip, b, s := slotOf(e)
	// Most additions replace nothing. s is 0 for what is no slot.
	if v := p[vip]; v != nil && v.gone[b]&s != 0 {
		v.gone[b] &^= s
	}
}

// slotOf is the backend in a slot, or one that drains, the VIP it is for, and for
// which clients; no sides if e is neither.
func slotOf(e element) (vip netip.Addr, b goneBackend, s sides) {
	switch base(e.set) {
	case setExtEps:
		s = sideExternal
	case setIntEps:
		s = sideInternal
	case setDrain:
		vip, proto, n := frontendOf(e.set, e.key)
		backend := e.key[fieldsSize(specs[setExtSvc+family(vip)].key):]
		return vip, goneBackend{port{proto, n}, backendOf(backend)}, sideExternal | sideInternal
	default:
		return vip, b, 0
	}
	vip, proto, n := frontendOf(e.set, e.key)
	return vip, goneBackend{port{proto, n}, backendOf(e.data)}, s
}

// splitPatient takes out of p and returns what can wait: removed backends of TCP,
// and what is new in prefixes that were swept. There only processes of the host can
// have made entries before, whose packets the rules let pass.
func (p purge) splitPatient(swept []netip.Prefix) purge {
	patient := make(purge)
	for vip, v := range p {
		for b, s := range v.gone {
			if b.proto == TCP {
				patient.at(vip).gone[b] = s
				delete(v.gone, b)
			}
		}
		if (v.born || len(v.ports) > 0) && containsAddr(swept, vip) {
			to := patient.at(vip)
			to.born, v.born = v.born, false
			to.ports, v.ports = v.ports, to.ports
		}
		if v.left {
			patient.at(vip).left, v.left = true, false
		}
		if v.empty() {
			delete(p, vip)
		}
	}
	return patient
}

// base is the set for IPv4 of the pair that id is of.
func base(id setID) setID {
	if id >= setClientIf {
		return id
	}
	return id &^ 1
}

// merge adds what o asks for.
func (p purge) merge(o purge) {
	for vip, from := range o {
		to := p.at(vip)
		to.born, to.left = to.born || from.born, to.left || from.left
		maps.Copy(to.ports, from.ports)
		maps.Copy(to.fenced, from.fenced)
		maps.Copy(to.filled, from.filled)
		maps.Copy(to.orphaned, from.orphaned)
		for k, s := range from.gone {
			to.gone[k] |= s
		}
	}
}

// A flow is a conntrack entry, as far as it matters here.
type flow struct {
	client  netip.Addr     // original source
	from    uint16         // its port; 0 where there is none
	vip     netip.Addr     // original destination
	port    port           // original protocol and destination port; port 0 where there is none
	backend netip.AddrPort // source of replies
	dnat    bool
	replied bool // the backend has answered
	ended   bool // a connection of TCP that waits for nothing but to be forgotten
	yields  bool // and that a SYN by the same port takes the place of

	family uint8
	key    []byte // the attributes that name this very entry to the kernel
}

// wrong says whether the flow must go, now that s is what is wanted.
func (p purge) wrong(f *flow, s *State) bool {
	v := p[f.vip]
	if v == nil {
		return false
	}
	if !f.dnat {
		return v.born || v.ports[f.port]
	}
	if v.left && s.abandons(f.vip) {
		return true
	}
	if v.fenced[f.port] && s.forbids(f) || v.filled[f.port] && s.outlives(f) {
		return true
	}
	if v.orphaned[f.port] && s.ended(f) {
		return true
	}
	gone := v.gone[goneBackend{f.port, f.backend}]
	switch {
	case gone == 0:
		return false
	case f.port.proto == TCP && f.replied:
		return !f.yields && s.ended(f) // nothing goes by what yields, and deleteAll says what may begin in its place
	case s.takes(f), f.port.proto != TCP && s.strands(f):
		return false
	}
	// Whether other clients are this node's pods, an entry does not tell.
	if gone == sideExternal && containsAddr(s.Clients.CIDRs, f.client) {
		return false
	}
	return true
}

// takes says whether new flows go where this one does: the backend may have come
// back before its flows were looked at, or be one for other clients all along.
func (s *State) takes(f *flow) bool {
	fe := s.frontend(f.vip, f.port)
	return fe != nil && slices.ContainsFunc(s.targets(fe, f), func(t *Target) bool { return t.has(f.backend) })
}

// ended says whether a connection must not go on. Where the frontend is gone, it
// may.
func (s *State) ended(f *flow) bool {
	fe := s.frontend(f.vip, f.port)
	return fe != nil && !fe.has(f.backend)
}

// abandons says whether the first packets to an address are refused.
func (s *State) abandons(a netip.Addr) bool { return s.vip(a) == nil && containsAddr(s.Owned, a) }

// spareOwn takes addresses of the node itself for what they are, whatever a careless
// pool contains. A node may have thousands, so it asks only if one has left.
func (p purge) spareOwn() error {
	left := func(v *vipPurge) bool { return v.left }
	if !slices.ContainsFunc(slices.Collect(maps.Values(p)), left) {
		return nil
	}
	own, err := ownAddrs()
	for _, a := range own {
		if v := p[a]; v != nil {
			v.left = false
		}
	}
	return err
}

// strands says whether a flow that left a backend which drains would find none.
func (s *State) strands(f *flow) bool {
	fe := s.frontend(f.vip, f.port)
	return fe != nil && fe.drains(f.backend) && slices.ContainsFunc(s.targets(fe, f), (*Target).empty)
}

// outlives says whether a flow of a protocol without an end stayed with a backend
// that drains, though there is another.
func (s *State) outlives(f *flow) bool {
	fe := s.frontend(f.vip, f.port)
	return f.port.proto != TCP && fe != nil && fe.drains(f.backend) && !slices.ContainsFunc(s.targets(fe, f), (*Target).empty)
}

// targets are where new flows of that client may go. An entry does not tell by which
// interface its client came.
func (s *State) targets(fe *Frontend, f *flow) []*Target {
	switch {
	case containsAddr(s.Clients.CIDRs, f.client):
		return []*Target{&fe.Internal}
	case s.Clients.InterfacePrefix != "" || s.Clients.Bridge != "":
		return []*Target{&fe.External, &fe.Internal}
	default:
		return []*Target{&fe.External}
	}
}

func (t *Target) empty() bool { return len(t.Backends) == 0 }

// asHost is s in the eyes of a process of the host that has an address: it is a
// client on this node, whatever Clients says.
func (s State) asHost(client netip.Addr) *State {
	s.Clients = LocalClients{CIDRs: []netip.Prefix{netip.PrefixFrom(client, client.BitLen())}}
	return &s
}

// forbids says whether the flow is of one of our frontends and backends, and of a
// source that may not use them.
func (s *State) forbids(f *flow) bool {
	fe := s.frontend(f.vip, f.port)
	return fe != nil && fe.Sources != nil && fe.has(f.backend) && !containsAddr(fe.Sources, f.client)
}

// vip finds an address; nil: it is no VIP.
func (s *State) vip(addr netip.Addr) *VIP {
	i, found := slices.BinarySearchFunc(s.VIPs, addr, func(v *VIP, a netip.Addr) int { return v.Addr.Compare(a) })
	if !found {
		return nil
	}
	return s.VIPs[i]
}

// frontend finds one; nil: there is none.
func (s *State) frontend(vip netip.Addr, at port) *Frontend {
	v := s.vip(vip)
	if v == nil {
		return nil
	}
	fronts := v.Frontends
	j, found := slices.BinarySearchFunc(fronts, at, func(f Frontend, at port) int {
		return cmp.Or(cmp.Compare(f.Protocol, at.proto), cmp.Compare(f.Port, at.port))
	})
	if !found {
		return nil
	}
	return &fronts[j]
}

// has says whether the frontend's flows may be at a backend: new ones, or flows
// that it keeps.
func (f *Frontend) has(backend netip.AddrPort) bool {
	return f.External.has(backend) || f.Internal.has(backend) || f.drains(backend)
}

func (f *Frontend) drains(backend netip.AddrPort) bool {
	_, found := slices.BinarySearchFunc(f.Draining, backend, netip.AddrPort.Compare)
	return found
}

func (t *Target) has(backend netip.AddrPort) bool {
	_, found := slices.BinarySearchFunc(t.Backends, backend, func(b Backend, a netip.AddrPort) int { return b.Addr.Compare(a) })
	return found
}

func containsAddr(all []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(all, func(p netip.Prefix) bool { return p.Contains(a) })
}

// deleteFlows deletes the entries that p says are wrong by all that wanted returns,
// and returns them. wanted is called for each entry: the walk takes a while, in which
// a new State may make an entry right. Entries that are gone by themselves
// meanwhile are no error.
func deleteFlows(s *socket, p purge, wanted func() [2]State) (deleted []flow, err error) {
	// A node may have thousands of addresses: only a flow that seems wrong asks.
	var unknown error
	own := sync.OnceValue(func() (own []netip.Addr) {
		own, unknown = ownAddrs()
		return own
	})
	wrong := func(f *flow, want *State) bool {
		if !p.wrong(f, want) {
			return false
		}
		return !slices.Contains(own(), f.client) && unknown == nil || p.wrong(f, want.asHost(f.client))
	}
	deleted, err = deleteFlowsIf(s, p.request(), func(f *flow) bool {
		if p[f.vip] == nil {
			return false
		}
		w := wanted()
		return wrong(f, &w[0]) && wrong(f, &w[1])
	})
	return deleted, errors.Join(err, unknown)
}

// deleteFlowsIf deletes those of the requested entries that are wrong, and returns
// them.
func deleteFlowsIf(s *socket, r flowRequest, is func(*flow) bool) (deleted []flow, err error) {
	wrong, err := listFlows(s, r, is)
	if err != nil {
		return nil, fmt.Errorf("list conntrack entries: %w", err)
	}
	return deleteAll(s, wrong)
}

// A flowRequest asks for entries of one family or all, to one address if it
// is valid, with those bits of the status that are in the mask.
type flowRequest struct {
	family       uint8
	vip          netip.Addr
	status, mask uint32
}

// request asks for all entries that may be wrong. It is always one: the kernel
// walks its whole hash table for each (9 ms for 262,144 buckets), and can filter by
// status and by one address only. With 100,000 entries of others a walk that lists
// them all takes 230 ms of a core, and one that lists none 30 ms. Not by an address
// of IPv6: the kernel compares those the wrong way round (seen in 6.18), and lists
// all but the right ones.
func (p purge) request() flowRequest {
	r := requestOf(maps.Keys(p))
	untranslated, translated := false, false
	for _, v := range p {
		untranslated = untranslated || v.born || len(v.ports) > 0
		translated = translated || len(v.fenced) > 0 || len(v.filled) > 0 || len(v.gone) > 0 || v.left
	}
	switch {
	case untranslated && !translated:
		r.mask = ipsDstNAT
	case translated && !untranslated:
		r.status, r.mask = ipsDstNAT, ipsDstNAT
	}
	return r
}

// requestOf asks for all entries to some addresses.
func requestOf(vips iter.Seq[netip.Addr]) (r flowRequest) {
	n := 0
	for vip := range vips {
		f := uint8(unix.AF_INET)
		if vip.Is6() {
			f = unix.AF_INET6
		}
		if n++; n > 1 && r.family != f {
			return flowRequest{family: unix.AF_UNSPEC}
		}
		r = flowRequest{family: f}
		if n == 1 && vip.Is4() {
			r.vip = vip
		}
	}
	return r
}

// attributes make the kernel filter (since 5.8 by address, since
// 5.16 by status; older ones list all, which is why the answer is checked in any
// case).
func (r flowRequest) attributes() []byte {
	var e nfnl.Encoder
	if r.mask != 0 {
		e.Uint32(ctaStatus, r.status)
		e.Uint32(ctaStatusMask, r.mask)
	}
	if !r.vip.IsValid() {
		return e.B
	}
	t := e.Open(ctaTupleOrig)
	ip := e.Open(ctaTupleIP)
	e.Bytes(ctaIPv4Dst, r.vip.AsSlice())
	e.Close(ip)
	e.Close(t)
	f := e.Open(ctaFilter)
	e.Bytes(ctaFilterOrigFlags, binary.NativeEndian.AppendUint32(nil, ctaFilterIPDst))
	e.Close(f)
	return e.B
}

// listFlows lists the entries that keep chooses. Each is complete: one that is
// missed because the table changed meanwhile was just born, or is gone.
func listFlows(s *socket, r flowRequest, keep func(*flow) bool) ([]flow, error) {
	var all []flow
	err := s.Dump(unix.NFNL_SUBSYS_CTNETLINK, ctGet, r.family, r.attributes(), func(data []byte) {
		f, ok := parseFlow(data)
		if ok && keep(&f) {
			f.family = unix.AF_INET
			if f.vip.Is6() {
				f.family = unix.AF_INET6
			}
			f.key = flowKey(data)
			all = append(all, f)
		}
	})
	if errors.Is(err, nfnl.ErrInterrupted) {
		err = nil
	}
	return all, err
}

func parseFlow(data []byte) (f flow, ok bool) {
	var orig, reply []byte
	for t, v := range nfnl.Attributes(data) {
		switch t {
		case ctaTupleOrig:
			orig = v
		case ctaTupleReply:
			reply = v
		case ctaStatus:
			if len(v) == 4 {
				status := binary.BigEndian.Uint32(v)
				f.dnat, f.replied = status&ipsDstNAT != 0, status&ipsSeenReply != 0
			}
		case ctaProtoInfo:
			f.ended, f.yields = parseEnd(v)
		}
	}
	var src, dst, from netip.Addr
	var toPort, fromPort uint16
	src, dst, f.port.proto, f.from, toPort = parseTuple(orig)
	from, _, _, fromPort, _ = parseTuple(reply)
	f.client, f.vip, f.port.port = src, dst, toPort
	f.backend = netip.AddrPortFrom(from, fromPort)
	return f, src.IsValid() && dst.IsValid() && from.IsValid()
}

// States of a connection of TCP, from linux/netfilter/nf_conntrack_tcp.h.
const (
	tcpLastAck = 6 // both have said FIN
	tcpClose   = 8 // after an RST; before it comes TIME_WAIT

	tcpCloseInit = 4 // IP_CT_TCP_FLAG_CLOSE_INIT: said FIN
)

// parseEnd says whether a connection has ended, and whether it yields: conntrack lets a SYN begin
// another one in its place (nf_conntrack_tcp_packet). In LAST_ACK, or where the backend has
// reset what neither side had ended, it leads the SYN to the old one's backend, up to half a
// minute long.
func parseEnd(info []byte) (ended, yields bool) {
	state := nfnl.Attribute(info, ctaProtoInfoTCP, ctaProtoInfoTCPState)
	if len(state) != 1 || state[0] < tcpLastAck || state[0] > tcpClose {
		return false, false
	}
	fin := func(side uint16) bool { // struct nf_ct_tcp_flags: flags, mask
		flags := nfnl.Attribute(info, ctaProtoInfoTCP, side)
		return len(flags) == 2 && flags[0]&tcpCloseInit != 0
	}
	return true, state[0] != tcpLastAck && (fin(ctaProtoInfoTCPFlagsOriginal) || fin(ctaProtoInfoTCPFlagsReply))
}

// parseTuple reads one direction of an entry.
func parseTuple(tuple []byte) (src, dst netip.Addr, proto Protocol, srcPort, dstPort uint16) {
	for t, v := range nfnl.Attributes(nfnl.Attribute(tuple, ctaTupleIP)) {
		switch a, _ := netip.AddrFromSlice(v); t {
		case ctaIPv4Src, ctaIPv6Src:
			src = a
		case ctaIPv4Dst, ctaIPv6Dst:
			dst = a
		}
	}
	for t, v := range nfnl.Attributes(nfnl.Attribute(tuple, ctaTupleProto)) {
		switch {
		case t == ctaProtoNum && len(v) == 1:
			proto = Protocol(v[0])
		case t == ctaProtoSrc && len(v) == 2:
			srcPort = binary.BigEndian.Uint16(v)
		case t == ctaProtoDst && len(v) == 2:
			dstPort = binary.BigEndian.Uint16(v)
		}
	}
	return src, dst, proto, srcPort, dstPort
}

// flowKey copies the attributes that name an entry. The id makes sure that an
// entry which took its place meanwhile is left alone.
func flowKey(data []byte) []byte {
	var e nfnl.Encoder
	for t, v := range nfnl.Attributes(data) {
		switch t {
		case ctaTupleOrig:
			e.Bytes(t|unix.NLA_F_NESTED, v)
		case ctaID, ctaZone:
			e.Bytes(t, v)
		}
	}
	return e.B
}

// deleteBatch is how many entries are deleted at a time. The kernel answers for each that
// it can not delete, and all answers must fit in the socket's buffer.
const deleteBatch = 256

// deleteAll deletes listed entries, and returns the deleted ones. Entries that have gone by
// themselves are no error.
//
// It has to be quick. A SYN may begin another connection in the place of one that has
// ended, and that one often has the same ID: the kernel makes it of the place in memory,
// which is free again, and of the tuple. It would be deleted alive.
func deleteAll(s *socket, all []flow) (deleted []flow, err error) {
	var errs []error
	for batch := range slices.Chunk(all, deleteBatch) {
		failed, err := deleteSome(s, batch)
		if err != nil {
			return deleted, errors.Join(append(errs, err)...)
		}
		for i, f := range batch {
			switch err := failed[i]; {
			case err == nil:
				deleted = append(deleted, f)
			case !errors.Is(err, unix.ENOENT):
				errs = append(errs, fmt.Errorf("delete conntrack entry %s to %s: %w", f.client, f.vip, err))
			}
		}
	}
	return deleted, errors.Join(errs...)
}

// deleteSome deletes entries, and returns by index why it could not delete some. A message
// without a tuple would delete all that there are.
func deleteSome(s *socket, batch []flow) (failed map[int]error, err error) {
	var e nfnl.Encoder
	first := s.Seq + 1
	for i, f := range batch {
		if nfnl.Attribute(f.key, ctaTupleOrig) == nil {
			return nil, errors.New("BUG: no tuple")
		}
		flags := uint16(unix.NLM_F_REQUEST)
		if i == len(batch)-1 {
			flags |= unix.NLM_F_ACK
		}
		s.Seq++
		e.Message(unix.NFNL_SUBSYS_CTNETLINK, ctDelete, flags, s.Seq, f.family, func() { e.Raw(f.key) })
	}
	if err := s.Send(e.B); err != nil {
		return nil, err
	}
	failed, answered := make(map[int]error), false
	for r, err := range s.Replies(false) {
		if err != nil {
			return nil, err
		}
		if r.Kind != unix.NLMSG_ERROR || r.Seq-first >= uint32(len(batch)) {
			continue
		}
		answered = answered || r.Seq == s.Seq
		if err := r.Errno(); err != nil {
			failed[int(r.Seq-first)] = err
		}
	}
	if !answered {
		return nil, errUnanswered
	}
	return failed, nil
}
