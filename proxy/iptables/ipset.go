package iptables

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/nfnl"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// From linux/netfilter/ipset/ip_set.h, which x/sys does not have.
const (
	ipsetCreate  = 2
	ipsetDestroy = 3
	ipsetSwap    = 6
	ipsetList    = 7
	CommandAdd   = 9
	CommandDel   = 10

	ipsetProtocol = 6 // that of Linux 2.6.39; 7 came with 4.20 and is the same here

	ipsetAttrProtocol = 1
	ipsetAttrName     = 2
	ipsetAttrKind     = 3
	ipsetAttrName2    = ipsetAttrKind // of the other set to swap with
	ipsetAttrRevision = 4
	ipsetAttrFamily   = 5
	ipsetAttrFlags    = 6
	AttrData          = 7
	ipsetAttrEntries  = 8
	AttrLine          = 9

	AttrIP           = 1
	AttrCIDR         = 3
	ipsetAttrPort    = 4
	ipsetAttrTimeout = 6
	ipsetAttrProto   = 7
	AttrOptions      = 8 // IPSET_ATTR_CADT_FLAGS
	ipsetAttrMaxElem = 19
	ipsetAttrIP2     = 20
	ipsetAttrCIDR2   = 21

	ipsetListNames = 1 << 1 // IPSET_FLAG_LIST_SETNAME

	// maxEntries bounds each set. The kernel takes memory only for what is in it.
	maxEntries = 1 << 20
)

// ipsetErrors are the errors of ipset that no errno has.
var ipsetErrors = map[unix.Errno]string{
	4097: "ipset: protocol error",
	4098: "ipset: this kernel has no set of that type",
	4099: "ipset: no more sets can be created",
	4100: "ipset: the set is used by rules",
	4102: "ipset: a set of that name has another type",
	4103: "ipset: the entry exists, or does not",
	4109: "ipset: the set is full",
}

// ipset does one request, whose attributes body appends after the set's name.
func RequestSet(s *nfnl.Socket, command uint8, flags uint16, f state.SetID, name string, body func(e *nfnl.Encoder)) error {
	s.Seq++
	var e nfnl.Encoder
	e.Message(unix.NFNL_SUBSYS_IPSET, command, unix.NLM_F_REQUEST|unix.NLM_F_ACK|flags, s.Seq, state.NFFamily(f), func() {
		e.Bytes(ipsetAttrProtocol, []byte{ipsetProtocol})
		e.Text(ipsetAttrName, name)
		if body != nil {
			body(&e)
		}
	})
	if err := s.Send(e.B); err != nil {
		return err
	}
	for r, err := range s.Replies(false) {
		if err != nil {
			return err
		}
		if r.Kind == unix.NLMSG_ERROR && r.Seq == s.Seq {
			return ipsetError(name, r.Errno())
		}
	}
	return nfnl.ErrUnanswered
}

// A SetError is an error code of ipset that is no errno.
type SetError struct{ set, text string }

func (e *SetError) Error() string { return "set " + e.set + ": " + e.text }

func ipsetError(name string, err error) error {
	if err == nil {
		return nil
	}
	var errno unix.Errno
	if errors.As(err, &errno) && ipsetErrors[errno] != "" {
		return &SetError{name, ipsetErrors[errno]}
	}
	return fmt.Errorf("set %s: %w", name, err)
}

// CreateSet makes a set; that it exists in this very form is no error, and in another
// is EEXIST.
func CreateSet(s *nfnl.Socket, name string, form SetForm) error {
	return RequestSet(s, ipsetCreate, unix.NLM_F_CREATE, form.Family, name, func(e *nfnl.Encoder) {
		e.Text(ipsetAttrKind, form.Kind)
		e.Bytes(ipsetAttrRevision, []byte{0})
		e.Bytes(ipsetAttrFamily, []byte{state.NFFamily(form.Family)})
		at := e.Open(AttrData)
		e.Uint32(ipsetAttrMaxElem|unix.NLA_F_NET_BYTEORDER, maxEntries)
		if form.Timeout > 0 {
			e.Uint32(ipsetAttrTimeout|unix.NLA_F_NET_BYTEORDER, uint32(form.Timeout.Seconds()))
		}
		e.Close(at)
	})
}

// DestroySet deletes a set that no rule refers to. That there is none is no error.
func DestroySet(s *nfnl.Socket, name string) error {
	err := RequestSet(s, ipsetDestroy, 0, 0, name, nil)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// ReplaceSet puts a set with these entries in the place of one of the same type, under
// the eyes of rules that ask it.
func ReplaceSet(s *nfnl.Socket, name string, form SetForm, all []Entry) error {
	const spare = SetPrefix + "spare"
	if err := errors.Join(DestroySet(s, spare), CreateSet(s, spare, form)); err != nil {
		return err
	}
	err := ChangeSet(s, CommandAdd, spare, all)
	if err == nil {
		err = RequestSet(s, ipsetSwap, 0, form.Family, name, func(e *nfnl.Encoder) { e.Text(ipsetAttrName2, spare) })
	}
	return errors.Join(err, DestroySet(s, spare))
}

// ChangeEntries adds or deletes entries that are sorted by set. An entry that is already as
// wanted is no error.
func ChangeEntries(s *nfnl.Socket, command uint8, all []Entry) error {
	for len(all) > 0 {
		first, n := all[0], 1
		for n < len(all) && all[n].Set == first.Set && all[n].family() == first.family() {
			n++
		}
		if err := ChangeSet(s, command, SetName(first.Set, first.family()), all[:n]); err != nil {
			return err
		}
		all = all[n:]
	}
	return nil
}

// ChangeSet adds entries to the set of that name, or deletes them.
func ChangeSet(s *nfnl.Socket, command uint8, name string, all []Entry) error {
	for len(all) > 0 {
		n := 0
		err := RequestSet(s, command, 0, all[0].family(), name, func(e *nfnl.Encoder) {
			at := e.Open(ipsetAttrEntries)
			for n < len(all) && len(e.B)-at < nfnl.MaxNested {
				all[n].encode(e)
				n++
			}
			e.Close(at)
			e.Uint32(AttrLine, 0)
		})
		if err != nil {
			return err
		}
		all = all[n:]
	}
	return nil
}

func (e Entry) encode(to *nfnl.Encoder) {
	at := to.Open(AttrData)
	EncodeIP(to, AttrIP, e.Addr.Addr())
	if SetShapes[e.Set].Kind == "hash:net" {
		to.Bytes(AttrCIDR, []byte{byte(e.Addr.Bits())})
	}
	if e.Port.Port != 0 {
		to.Bytes(ipsetAttrPort|unix.NLA_F_NET_BYTEORDER, binary.BigEndian.AppendUint16(nil, e.Port.Port))
		to.Bytes(ipsetAttrProto, []byte{byte(e.Port.Proto)})
	}
	if e.net.IsValid() {
		EncodeIP(to, ipsetAttrIP2, e.net.Addr())
		to.Bytes(ipsetAttrCIDR2, []byte{byte(e.net.Bits())})
	}
	to.Close(at)
}

func EncodeIP(e *nfnl.Encoder, t uint16, a netip.Addr) {
	at := e.Open(t)
	e.Bytes(uint16(state.Family(a)+1)|unix.NLA_F_NET_BYTEORDER, a.AsSlice()) // IPSET_ATTR_IPADDR_IPV4 or IPV6
	e.Close(at)
}

// SetNames lists the sets that are ours.
func SetNames(s *nfnl.Socket) ([]string, error) {
	var names []string
	err := listSets(s, "", func(data []byte) {
		if name := nfnl.CString(nfnl.Attribute(data, ipsetAttrName)); strings.HasPrefix(name, SetPrefix) {
			names = append(names, name)
		}
	})
	return names, err
}

// setEntries lists what is in a set; nothing if there is none.
func setEntries(s *nfnl.Socket, m ipsetID, f state.SetID) ([]Entry, error) {
	var all []Entry
	name := SetName(m, f)
	err := listSets(s, name, func(data []byte) {
		if nfnl.CString(nfnl.Attribute(data, ipsetAttrName)) != name {
			return
		}
		for _, item := range nfnl.Attributes(nfnl.Attribute(data, ipsetAttrEntries)) {
			all = append(all, parseEntry(m, item))
		}
	})
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	return all, err
}

// listSets lists one set with its entries, or the names of all.
func listSets(s *nfnl.Socket, name string, each func(data []byte)) error {
	if name == "" {
		return listAllSets(s, ipsetListNames, each)
	}
	return requestSets(s, each, func(e *nfnl.Encoder) { e.Text(ipsetAttrName, name) })
}

// listAllSets lists all sets, but only what the flag says.
func listAllSets(s *nfnl.Socket, flag uint32, each func(data []byte)) error {
	return requestSets(s, each, func(e *nfnl.Encoder) { e.Uint32(ipsetAttrFlags|unix.NLA_F_NET_BYTEORDER, flag) })
}

func requestSets(s *nfnl.Socket, each func(data []byte), which func(e *nfnl.Encoder)) error {
	var e nfnl.Encoder
	e.Bytes(ipsetAttrProtocol, []byte{ipsetProtocol})
	which(&e)
	if err := s.Dump(unix.NFNL_SUBSYS_IPSET, ipsetList, unix.NFPROTO_IPV4, e.B, each); err != nil {
		return fmt.Errorf("list sets: %w", err)
	}
	return nil
}

func parseEntry(m ipsetID, data []byte) Entry {
	e := Entry{Set: m}
	var addr, net netip.Addr
	var bits, netBits int
	for t, v := range nfnl.Attributes(data) {
		switch {
		case t == AttrIP:
			addr = parseIP(v)
		case t == ipsetAttrIP2:
			net = parseIP(v)
		case t == AttrCIDR && len(v) == 1:
			bits = int(v[0])
		case t == ipsetAttrCIDR2 && len(v) == 1:
			netBits = int(v[0])
		case t == ipsetAttrPort && len(v) == 2:
			e.Port.Port = binary.BigEndian.Uint16(v)
		case t == ipsetAttrProto && len(v) == 1:
			e.Port.Proto = state.Protocol(v[0])
		case t == AttrOptions && len(v) == 4:
			e.options = binary.BigEndian.Uint32(v)
		}
	}
	if bits == 0 {
		bits = addr.BitLen()
	}
	e.Addr = netip.PrefixFrom(addr, bits)
	if net.IsValid() {
		if netBits == 0 {
			netBits = net.BitLen()
		}
		e.net = netip.PrefixFrom(net, netBits)
	}
	return e
}

func parseIP(nested []byte) netip.Addr {
	for _, v := range nfnl.Attributes(nested) {
		a, _ := netip.AddrFromSlice(v)
		return a
	}
	return netip.Addr{}
}
