package conntrack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/kernel/nfnl"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// From linux/netfilter/nfnetlink_conntrack.h and nf_conntrack_common.h, which
// x/sys does not have.
const (
	ctGet    = 1 // IPCTNL_MSG_CT_GET
	ctDelete = 2 // IPCTNL_MSG_CT_DELETE

	CtaTupleOrig  = 1
	CtaTupleReply = 2
	CtaStatus     = 3
	ctaProtoInfo  = 4
	ctaID         = 12
	ctaZone       = 18
	ctaFilter     = 25
	ctaStatusMask = 26

	CtaTupleIP    = 1
	CtaTupleProto = 2
	CtaIPv4Src    = 1
	CtaIPv4Dst    = 2
	ctaIPv6Src    = 3
	ctaIPv6Dst    = 4
	CtaProtoNum   = 1
	CtaProtoSrc   = 2
	CtaProtoDst   = 3

	ctaProtoInfoTCP              = 1
	ctaProtoInfoTCPState         = 1
	ctaProtoInfoTCPFlagsOriginal = 4
	ctaProtoInfoTCPFlagsReply    = 5

	ctaFilterOrigFlags = 1
	ctaFilterIPDst     = 1 << 1

	ipsSeenReply = 1 << 1 // IPS_SEEN_REPLY: packets went both ways
	StatusDstNAT = 1 << 5 // IPS_DST_NAT: the destination was rewritten
)

// A Flow is a conntrack entry, as far as it matters here.
type Flow struct {
	Client  netip.Addr     // original source
	From    uint16         // its port; 0 where there is none
	VIP     netip.Addr     // original destination
	Port    state.Port     // original protocol and destination port; port 0 where there is none
	Backend netip.AddrPort // source of replies
	DNAT    bool
	replied bool // the backend has answered
	Ended   bool // a TCP connection whose entry only waits for its timeout
	yields  bool // and that a SYN from the same port replaces
	nearEnd bool // the kernel forgets it within restTime, unless it gets a packet

	family uint8
	key    []byte // the attributes that identify this entry to the kernel
}

// deleteFlows deletes the entries that are stale by both States of wanted, and returns them. It
// calls wanted for each entry, because a new State may make an entry right during the walk.
// Excluded entries stay, and flows that may rest get a short timeout instead. An entry that has
// expired meanwhile is no error.
func deleteFlows(s *nfnl.Socket, stale StaleEntries, wanted func() [2]state.State, excluded func(*Flow) bool,
	leaves func(*Flow) departure) (gone []Flow, err error) {
	// A node may have thousands of addresses, so they are listed only for a flow that seems stale.
	var unknown error
	own := sync.OnceValue(func() (own []netip.Addr) {
		own, unknown = OwnAddrs()
		return own
	})
	isStale := func(f *Flow, want *state.State) bool {
		if !stale.includes(f, want) {
			return false
		}
		return !slices.Contains(own(), f.Client) && unknown == nil || stale.includes(f, asHost(*want, f.Client))
	}
	all, err := ListFlows(s, stale.request(), func(f *Flow) bool {
		if stale[f.VIP] == nil || excluded(f) {
			return false
		}
		w := wanted()
		return isStale(f, &w[0]) && isStale(f, &w[1])
	})
	if err != nil {
		return nil, fmt.Errorf("list conntrack entries: %w", err)
	}
	leaving := make(map[departure][]Flow)
	for _, f := range all {
		how := leaves(&f)
		leaving[how] = append(leaving[how], f)
	}
	_, err = changeAll(s, leaving[shortened], expiry)
	gone, errDelete := changeAll(s, leaving[deleted], deletion)
	return gone, errors.Join(err, errDelete, unknown)
}

// DeleteFlowsIf deletes the requested entries that the predicate selects, and returns them.
func DeleteFlowsIf(s *nfnl.Socket, r Request, is func(*Flow) bool) (deleted []Flow, err error) {
	wrong, err := ListFlows(s, r, is)
	if err != nil {
		return nil, fmt.Errorf("list conntrack entries: %w", err)
	}
	return changeAll(s, wrong, deletion)
}

// A Request selects entries by family (or all families), by destination if vip is valid, and by the
// status bits in the mask.
type Request struct {
	Family       uint8
	vip          netip.Addr
	Status, Mask uint32
}

// request selects all entries that may be stale, in one Request: for each, the kernel walks its
// whole hash table (9 ms for 262,144 buckets). It can filter by status and one address only. With
// 100,000 unrelated entries, a walk that lists them all takes 230 ms of CPU time, and one that
// lists none 30 ms. IPv6 addresses are not filtered: Linux 6.18 inverts that comparison, and lists
// all entries but the wanted ones.
func (stale StaleEntries) request() Request {
	r := RequestOf(maps.Keys(stale))
	untranslated, translated := false, false
	for _, v := range stale {
		untranslated = untranslated || v.newVIP || len(v.newPorts) > 0
		translated = translated || len(v.restricted) > 0 || len(v.removedBackends) > 0 || v.removedVIP
	}
	switch {
	case untranslated && !translated:
		r.Mask = StatusDstNAT
	case translated && !untranslated:
		r.Status, r.Mask = StatusDstNAT, StatusDstNAT
	}
	return r
}

// RequestOf selects all entries to these addresses.
func RequestOf(vips iter.Seq[netip.Addr]) (r Request) {
	n := 0
	for vip := range vips {
		f := uint8(unix.AF_INET)
		if vip.Is6() {
			f = unix.AF_INET6
		}
		if n++; n > 1 && r.Family != f {
			return Request{Family: unix.AF_UNSPEC}
		}
		r = Request{Family: f}
		if n == 1 && vip.Is4() {
			r.vip = vip
		}
	}
	return r
}

// attributes encodes the filter for the kernel. Filtering by address needs Linux 5.8, by status
// 5.16; older kernels list all entries, so callers check each one anyway.
func (r Request) attributes() []byte {
	var e nfnl.Encoder
	if r.Mask != 0 {
		e.Uint32(CtaStatus, r.Status)
		e.Uint32(ctaStatusMask, r.Mask)
	}
	if !r.vip.IsValid() {
		return e.B
	}
	t := e.Open(CtaTupleOrig)
	ip := e.Open(CtaTupleIP)
	e.Bytes(CtaIPv4Dst, r.vip.AsSlice())
	e.Close(ip)
	e.Close(t)
	f := e.Open(ctaFilter)
	e.Bytes(ctaFilterOrigFlags, binary.NativeEndian.AppendUint32(nil, ctaFilterIPDst))
	e.Close(f)
	return e.B
}

// ListFlows lists the entries that keep selects. It may miss entries that were created or deleted
// during the walk.
func ListFlows(s *nfnl.Socket, r Request, keep func(*Flow) bool) ([]Flow, error) {
	var all []Flow
	err := s.Dump(unix.NFNL_SUBSYS_CTNETLINK, ctGet, r.Family, r.attributes(), func(data []byte) {
		f, ok := parseFlow(data)
		if ok && keep(&f) {
			f.family = unix.AF_INET
			if f.VIP.Is6() {
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

func parseFlow(data []byte) (f Flow, ok bool) {
	var orig, reply []byte
	for t, v := range nfnl.Attributes(data) {
		switch t {
		case CtaTupleOrig:
			orig = v
		case CtaTupleReply:
			reply = v
		case CtaStatus:
			if len(v) == 4 {
				status := binary.BigEndian.Uint32(v)
				f.DNAT, f.replied = status&StatusDstNAT != 0, status&ipsSeenReply != 0
			}
		case ctaTimeout:
			f.nearEnd = len(v) == 4 && time.Duration(binary.BigEndian.Uint32(v))*time.Second <= restTime
		case ctaProtoInfo:
			f.Ended, f.yields = parseEnd(v)
		}
	}
	var src, dst, from netip.Addr
	var toPort, fromPort uint16
	src, dst, f.Port.Proto, f.From, toPort = parseTuple(orig)
	from, _, _, fromPort, _ = parseTuple(reply)
	f.Client, f.VIP, f.Port.Port = src, dst, toPort
	f.Backend = netip.AddrPortFrom(from, fromPort)
	return f, src.IsValid() && dst.IsValid() && from.IsValid()
}

// States of a connection of TCP, from linux/netfilter/nf_conntrack_tcp.h.
const (
	tcpLastAck = 6 // both sides have sent FIN
	tcpClose   = 8 // after an RST; TIME_WAIT is between the two

	tcpCloseInit = 4 // IP_CT_TCP_FLAG_CLOSE_INIT: has sent FIN
)

// parseEnd reports whether a connection has ended, and whether it yields: then conntrack lets a SYN
// begin a new connection in its place (nf_conntrack_tcp_packet). In LAST_ACK, or if the backend
// reset the connection before either side sent FIN, conntrack sends the SYN to the old backend, for
// up to half a minute.
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
func parseTuple(tuple []byte) (src, dst netip.Addr, proto state.Protocol, srcPort, dstPort uint16) {
	for t, v := range nfnl.Attributes(nfnl.Attribute(tuple, CtaTupleIP)) {
		switch a, _ := netip.AddrFromSlice(v); t {
		case CtaIPv4Src, ctaIPv6Src:
			src = a
		case CtaIPv4Dst, ctaIPv6Dst:
			dst = a
		}
	}
	for t, v := range nfnl.Attributes(nfnl.Attribute(tuple, CtaTupleProto)) {
		switch {
		case t == CtaProtoNum && len(v) == 1:
			proto = state.Protocol(v[0])
		case t == CtaProtoSrc && len(v) == 2:
			srcPort = binary.BigEndian.Uint16(v)
		case t == CtaProtoDst && len(v) == 2:
			dstPort = binary.BigEndian.Uint16(v)
		}
	}
	return src, dst, proto, srcPort, dstPort
}

// flowKey copies the attributes that identify an entry. The ID protects an entry that has replaced
// it meanwhile.
func flowKey(data []byte) []byte {
	var e nfnl.Encoder
	for t, v := range nfnl.Attributes(data) {
		switch t {
		case CtaTupleOrig:
			e.Bytes(t|unix.NLA_F_NESTED, v)
		case ctaID, ctaZone:
			e.Bytes(t, v)
		}
	}
	return e.B
}

// A flowChange is a change that the kernel makes to an entry.
type flowChange struct {
	verb       string
	message    uint8  // IPCTNL_MSG_CT_*
	attributes []byte // besides the key of the entry
}

var deletion = flowChange{verb: "delete", message: ctDelete}

// changeBatch is how many entries one message changes. The kernel reports each failure, and all
// reports must fit into the socket's buffer.
const changeBatch = 256

// changeAll changes listed entries, and returns the changed ones. An entry that has expired
// meanwhile is no error.
//
// It must be quick. A SYN may begin a new connection in place of an ended one, and the new entry
// often gets the same ID: the kernel derives the ID from the tuple and the memory address, which is
// free again. A late deletion would hit the new connection.
func changeAll(s *nfnl.Socket, all []Flow, c flowChange) (changed []Flow, err error) {
	var errs []error
	for batch := range slices.Chunk(all, changeBatch) {
		failed, err := changeSome(s, batch, c)
		if err != nil {
			return changed, errors.Join(append(errs, err)...)
		}
		for i, f := range batch {
			switch err := failed[i]; {
			case err == nil:
				changed = append(changed, f)
			case !errors.Is(err, unix.ENOENT):
				errs = append(errs, fmt.Errorf("%s conntrack entry %s to %s: %w", c.verb, f.Client, f.VIP, err))
			}
		}
	}
	return changed, errors.Join(errs...)
}

// changeSome changes entries, and returns the failures by index. A deletion without a tuple would
// delete all entries.
func changeSome(s *nfnl.Socket, batch []Flow, c flowChange) (failed map[int]error, err error) {
	var e nfnl.Encoder
	first := s.Seq + 1
	for i, f := range batch {
		if nfnl.Attribute(f.key, CtaTupleOrig) == nil {
			return nil, errors.New("BUG: no tuple")
		}
		flags := uint16(unix.NLM_F_REQUEST)
		if i == len(batch)-1 {
			flags |= unix.NLM_F_ACK
		}
		s.Seq++
		e.Message(unix.NFNL_SUBSYS_CTNETLINK, c.message, flags, s.Seq, f.family,
			func() { e.Raw(f.key); e.Raw(c.attributes) })
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
		return nil, nfnl.ErrUnanswered
	}
	return failed, nil
}
