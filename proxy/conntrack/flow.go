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

	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/nfnl"
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
	Ended   bool // a connection of TCP that waits for nothing but to be forgotten
	yields  bool // and that a SYN by the same port takes the place of

	family uint8
	key    []byte // the attributes that name this very entry to the kernel
}

// deleteFlows deletes the entries that stale says are wrong by all that wanted returns,
// and returns them. wanted is called for each entry: the walk takes a while, in which
// a new State may make an entry right. Entries that are gone by themselves
// meanwhile are no error, excluded ones stay, and flows that may rest are not deleted but expire.
func deleteFlows(s *nfnl.Socket, stale StaleEntries, wanted func() [2]state.State, excluded, rests func(*Flow) bool) (deleted []Flow, err error) {
	// A node may have thousands of addresses: only a flow that seems wrong asks.
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
	var expiring, ending []Flow
	for _, f := range all {
		if rests(&f) {
			expiring = append(expiring, f)
		} else {
			ending = append(ending, f)
		}
	}
	_, err = changeAll(s, expiring, expiry)
	deleted, errDelete := changeAll(s, ending, deletion)
	return deleted, errors.Join(err, errDelete, unknown)
}

// DeleteFlowsIf deletes those of the requested entries that are wrong, and returns
// them.
func DeleteFlowsIf(s *nfnl.Socket, r Request, is func(*Flow) bool) (deleted []Flow, err error) {
	wrong, err := ListFlows(s, r, is)
	if err != nil {
		return nil, fmt.Errorf("list conntrack entries: %w", err)
	}
	return changeAll(s, wrong, deletion)
}

// A Request asks for entries of one family or all, to one address if it
// is valid, with those bits of the status that are in the mask.
type Request struct {
	Family       uint8
	vip          netip.Addr
	Status, Mask uint32
}

// request asks for all entries that may be wrong. It is always one: the kernel
// walks its whole hash table for each (9 ms for 262,144 buckets), and can filter by
// status and by one address only. With 100,000 entries of others a walk that lists
// them all takes 230 ms of a core, and one that lists none 30 ms. Not by an address
// of IPv6: the kernel compares those the wrong way round (seen in 6.18), and lists
// all but the right ones.
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

// RequestOf asks for all entries to some addresses.
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

// attributes make the kernel filter (since 5.8 by address, since
// 5.16 by status; older ones list all, which is why the answer is checked in any
// case).
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

// ListFlows lists the entries that keep chooses. Each is complete: one that is
// missed because the table changed meanwhile was just born, or is gone.
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
	tcpLastAck = 6 // both have said FIN
	tcpClose   = 8 // after an RST; before it comes TIME_WAIT

	tcpCloseInit = 4 // IP_CT_TCP_FLAG_CLOSE_INIT: said FIN
)

// parseEnd reports whether a connection has ended, and whether it yields: conntrack lets a SYN begin
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

// flowKey copies the attributes that name an entry. The id makes sure that an
// entry which took its place meanwhile is left alone.
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

// A flowChange is what a message asks the kernel to do with an entry.
type flowChange struct {
	verb       string
	message    uint8  // IPCTNL_MSG_CT_*
	attributes []byte // besides the attributes that name the entry
}

var deletion = flowChange{verb: "delete", message: ctDelete}

// changeBatch is how many entries are changed at a time. The kernel answers for each that
// it can not change, and all answers must fit in the socket's buffer.
const changeBatch = 256

// changeAll changes listed entries, and returns the changed ones. Entries that have gone by
// themselves are no error.
//
// It has to be quick. A SYN may begin another connection in the place of one that has
// ended, and that one often has the same ID: the kernel makes it of the place in memory,
// which is free again, and of the tuple. It would be deleted alive.
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

// changeSome changes entries, and returns by index why it could not change some. A deletion
// without a tuple would delete all that there are.
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
		e.Message(unix.NFNL_SUBSYS_CTNETLINK, c.message, flags, s.Seq, f.family, func() { e.Raw(f.key); e.Raw(c.attributes) })
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
