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

// Commands, attributes and flags of linux/netfilter/ipset/ip_set.h, which x/sys does not have.
// The exported ones are for the tests of package proxy, which damage sets with them.
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
	ipsetAttrKind     = 3             // IPSET_ATTR_TYPENAME
	ipsetAttrName2    = ipsetAttrKind // the other set of a swap
	ipsetAttrRevision = 4
	ipsetAttrFamily   = 5
	ipsetAttrFlags    = 6
	AttrData          = 7
	ipsetAttrEntries  = 8 // IPSET_ATTR_ADT
	AttrLine          = 9 // IPSET_ATTR_LINENO: the kernel requires it for several entries

	// Attributes of an entry, which begin at 1 again, and of a set that is created.
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

	// maxEntries bounds each set. The kernel allocates memory only for the entries there are.
	maxEntries = 1 << 20
)

// ipsetErrors are error codes of ipset itself (enum ipset_errno), which start above all errnos.
var ipsetErrors = map[unix.Errno]string{
	4097: "ipset: protocol error",
	4098: "ipset: this kernel has no set of that type",
	4099: "ipset: no more sets can be created",
	4100: "ipset: the set is used by rules",
	4102: "ipset: a set of that name has another type",
	4103: "ipset: the entry exists, or does not",
	4109: "ipset: the set is full",
}

// RequestSet sends one command for a set and waits for the kernel's answer. body, if not nil,
// appends attributes after the set's name. An error names the set: it is a SetError, or wraps
// the errno. It is exported for the tests of package proxy.
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

// A SetError is an error code of ipset that is not an errno. Package proxy takes it as a sign
// that the kernel rejects an address, not that the node has a fault.
type SetError struct{ set, text string }

// Error returns the set's name and the meaning of the code.
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

// CreateSet creates a set. If it exists in this form, nothing happens; in another form, the
// error is EEXIST. It is exported for the tests of package proxy.
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

// DestroySet deletes a set. A set that does not exist is not an error; one that a rule refers to
// is (IPSET_ERR_BUSY). It is exported for the tests of package proxy.
func DestroySet(s *nfnl.Socket, name string) error {
	err := RequestSet(s, ipsetDestroy, 0, 0, name, nil)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// ReplaceSet replaces a set by one with this form and these entries, in one step for the rules
// that use it: it fills a spare set and swaps the two. The kernel swaps only sets of the same
// type. It is exported for the tests of package proxy.
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

// ChangeEntries adds or deletes entries, by CommandAdd or CommandDel. They must be sorted by set
// and family. An entry that is already as wanted is not an error: requests lack NLM_F_EXCL.
// After an error, part of the entries may have changed. It is exported for the tests of package
// proxy.
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

// ChangeSet adds entries to the set of that name or deletes them, as many in a message as a
// nested attribute can hold. It is exported for the tests of package proxy.
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

// EncodeIP appends an address as ipset nests it: the inner attribute names the family. It is
// exported for the tests of package proxy.
func EncodeIP(e *nfnl.Encoder, t uint16, a netip.Addr) {
	at := e.Open(t)
	e.Bytes(uint16(state.Family(a)+1)|unix.NLA_F_NET_BYTEORDER, a.AsSlice()) // IPSET_ATTR_IPADDR_IPV4 or IPV6
	e.Close(at)
}

// SetNames returns the names of all sets with SetPrefix, of both families. The error is EINVAL if
// the kernel has no ipset. It is exported for the tests of package proxy.
func SetNames(s *nfnl.Socket) ([]string, error) {
	var names []string
	err := listSets(s, "", func(data []byte) {
		if name := nfnl.CString(nfnl.Attribute(data, ipsetAttrName)); strings.HasPrefix(name, SetPrefix) {
			names = append(names, name)
		}
	})
	return names, err
}

// setEntries returns the entries of a set; none if it does not exist.
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

// listSets lists one set with its entries or, if name is empty, the names of all sets. It calls
// each for every part: a large set comes in several messages.
func listSets(s *nfnl.Socket, name string, each func(data []byte)) error {
	if name == "" {
		return listAllSets(s, ipsetListNames, each)
	}
	return requestSets(s, each, func(e *nfnl.Encoder) { e.Text(ipsetAttrName, name) })
}

// listAllSets lists all sets, reduced by the flag to their names or headers.
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

// parseEntry reads an entry of a set. Without a prefix length, it is a single address.
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
