package iptables

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/kernel/nfnl"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// Commands, attributes and flags of linux/netfilter/ipset/ip_set.h, which x/sys does not have.
const (
	ipsetCreate  = 2
	ipsetDestroy = 3
	ipsetSwap    = 6
	ipsetList    = 7
	ipsetAdd     = 9
	ipsetDel     = 10

	ipsetProtocol = 6 // that of Linux 2.6.39; 7 came with 4.20 and is the same here

	ipsetAttrProtocol = 1
	ipsetAttrName     = 2
	ipsetAttrKind     = 3             // IPSET_ATTR_TYPENAME
	ipsetAttrName2    = ipsetAttrKind // the other set of a swap
	ipsetAttrRevision = 4
	ipsetAttrFamily   = 5
	ipsetAttrFlags    = 6
	ipsetAttrData     = 7
	ipsetAttrEntries  = 8 // IPSET_ATTR_ADT
	ipsetAttrLine     = 9 // IPSET_ATTR_LINENO: the kernel requires it for several entries

	// Attributes of an entry, which begin at 1 again, and of a set that is created.
	ipsetAttrIP      = 1
	ipsetAttrCIDR    = 3
	ipsetAttrPort    = 4
	ipsetAttrTimeout = 6
	ipsetAttrProto   = 7
	ipsetAttrOptions = 8 // IPSET_ATTR_CADT_FLAGS
	ipsetAttrMaxElem = 19
	ipsetAttrIP2     = 20
	ipsetAttrCIDR2   = 21

	ipsetListNames = 1 << 1 // IPSET_FLAG_LIST_SETNAME

	ipsetForceAdd = 1 << 5 // IPSET_FLAG_WITH_FORCEADD

	// maxEntries bounds each set but those of affinity, and maxClients these. The kernel allocates
	// memory only for the entries there are.
	maxEntries = 1 << 20
	maxClients = 1 << 14
)

// ipsetErrors are error codes of ipset itself (enum ipset_errno), which start above all errnos.
var ipsetErrors = map[unix.Errno]string{
	4097: "ipset: protocol error",
	4098: "ipset: this kernel has no set of that type",
	4099: "ipset: no more sets can be created",
	4100: "ipset: the set is used by rules",
	4102: "ipset: a set of that name has another type",
	4103: "ipset: the entry exists, or does not",
	4352: "ipset: the set is full", // IPSET_ERR_HASH_FULL
}

// requestSet sends one command for a set and waits for the kernel's answer. body, if not nil,
// appends attributes after the set's name. An error names the set: it is a SetError, or wraps the
// errno.
func requestSet(s *nfnl.Socket, command uint8, flags uint16, f state.SetID, name string,
	body func(e *nfnl.Encoder)) error {
	s.Seq++
	var e nfnl.Encoder
	e.Message(unix.NFNL_SUBSYS_IPSET, command, unix.NLM_F_REQUEST|unix.NLM_F_ACK|flags, s.Seq, state.NFFamily(f),
		func() {
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

// createSet creates a set. If it exists in this form, nothing happens; in another form, the error
// is EEXIST.
func createSet(s *nfnl.Socket, name string, form setForm) error {
	return requestSet(s, ipsetCreate, unix.NLM_F_CREATE, form.family, name, func(e *nfnl.Encoder) {
		e.Text(ipsetAttrKind, form.kind)
		e.Bytes(ipsetAttrRevision, []byte{0})
		e.Bytes(ipsetAttrFamily, []byte{state.NFFamily(form.family)})
		at := e.Open(ipsetAttrData)
		e.Uint32(ipsetAttrMaxElem|unix.NLA_F_NET_BYTEORDER, form.most)
		if form.evicts {
			e.Uint32(ipsetAttrOptions|unix.NLA_F_NET_BYTEORDER, ipsetForceAdd)
		}
		if form.timeout > 0 {
			e.Uint32(ipsetAttrTimeout|unix.NLA_F_NET_BYTEORDER, uint32(form.timeout.Seconds()))
		}
		e.Close(at)
	})
}

func createSets(s *nfnl.Socket, all map[string]setForm) error {
	for name, form := range all {
		if err := createSet(s, name, form); err != nil {
			return err
		}
	}
	return nil
}

// destroySet deletes a set. A set that does not exist is not an error; one that a rule refers to
// is (IPSET_ERR_BUSY).
func destroySet(s *nfnl.Socket, name string) error {
	err := requestSet(s, ipsetDestroy, 0, 0, name, nil)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// replaceSet replaces a set by one with this form and these entries, in one step for the rules
// that use it: it fills a spare set and swaps the two. The kernel swaps only sets of the same
// type.
func replaceSet(s *nfnl.Socket, name string, form setForm, all []setEntry) error {
	const spare = ipsetPrefix + "spare"
	if err := errors.Join(destroySet(s, spare), createSet(s, spare, form)); err != nil {
		return err
	}
	err := changeSet(s, ipsetAdd, spare, all)
	if err == nil {
		err = requestSet(s, ipsetSwap, 0, form.family, name, func(e *nfnl.Encoder) { e.Text(ipsetAttrName2, spare) })
	}
	return errors.Join(err, destroySet(s, spare))
}

// changeEntries adds or deletes entries, by ipsetAdd or ipsetDel. They must be sorted by set
// and family. An entry that is already as wanted is not an error: requests lack NLM_F_EXCL. After
// an error, part of the entries may have changed.
func changeEntries(s *nfnl.Socket, command uint8, all []setEntry) error {
	for len(all) > 0 {
		first, n := all[0], 1
		for n < len(all) && all[n].set == first.set && all[n].family() == first.family() {
			n++
		}
		if err := changeSet(s, command, setName(first.set, first.family()), all[:n]); err != nil {
			return err
		}
		all = all[n:]
	}
	return nil
}

// changeSet adds entries to the set of that name or deletes them, as many in a message as a nested
// attribute can hold.
func changeSet(s *nfnl.Socket, command uint8, name string, all []setEntry) error {
	for len(all) > 0 {
		n := 0
		err := requestSet(s, command, 0, all[0].family(), name, func(e *nfnl.Encoder) {
			at := e.Open(ipsetAttrEntries)
			for n < len(all) && len(e.B)-at < nfnl.MaxNested {
				all[n].encode(e)
				n++
			}
			e.Close(at)
			e.Uint32(ipsetAttrLine, 0)
		})
		if err != nil {
			return err
		}
		all = all[n:]
	}
	return nil
}

func (e setEntry) encode(to *nfnl.Encoder) {
	at := to.Open(ipsetAttrData)
	encodeIP(to, ipsetAttrIP, e.addr.Addr())
	if setShapes[e.set].kind == "hash:net" {
		to.Bytes(ipsetAttrCIDR, []byte{byte(e.addr.Bits())})
	}
	if e.port.Port != 0 {
		to.Bytes(ipsetAttrPort|unix.NLA_F_NET_BYTEORDER, binary.BigEndian.AppendUint16(nil, e.port.Port))
		to.Bytes(ipsetAttrProto, []byte{byte(e.port.Proto)})
	}
	if e.net.IsValid() {
		encodeIP(to, ipsetAttrIP2, e.net.Addr())
		to.Bytes(ipsetAttrCIDR2, []byte{byte(e.net.Bits())})
	}
	to.Close(at)
}

// encodeIP appends an address as ipset nests it: the inner attribute names the family.
func encodeIP(e *nfnl.Encoder, t uint16, a netip.Addr) {
	at := e.Open(t)
	e.Bytes(uint16(state.Family(a)+1)|unix.NLA_F_NET_BYTEORDER, a.AsSlice()) // IPSET_ATTR_IPADDR_IPV4 or IPV6
	e.Close(at)
}

// setNames returns the names of all sets with ipsetPrefix, of both families. The error is EINVAL if
// the kernel has no ipset.
func setNames(s *nfnl.Socket) ([]string, error) {
	var names []string
	err := listSets(s, "", ipsetListNames, func(data []byte) {
		if name := nfnl.CString(nfnl.Attribute(data, ipsetAttrName)); strings.HasPrefix(name, ipsetPrefix) {
			names = append(names, name)
		}
	})
	return names, err
}

// setEntries returns the entries of a set; none if it does not exist.
func setEntries(s *nfnl.Socket, m ipsetID, f state.SetID) ([]setEntry, error) {
	var all []setEntry
	name := setName(m, f)
	err := listSets(s, name, 0, func(data []byte) {
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

// listSets lists one set with its entries or, if name is empty, all sets, reduced by the flag to their
// names or headers. It calls each for every part: a large set comes in several messages.
func listSets(s *nfnl.Socket, name string, flag uint32, each func(data []byte)) error {
	var e nfnl.Encoder
	e.Bytes(ipsetAttrProtocol, []byte{ipsetProtocol})
	if name != "" {
		e.Text(ipsetAttrName, name)
	} else {
		e.Uint32(ipsetAttrFlags|unix.NLA_F_NET_BYTEORDER, flag)
	}
	if err := s.Dump(unix.NFNL_SUBSYS_IPSET, ipsetList, unix.NFPROTO_IPV4, e.B, each); err != nil {
		return fmt.Errorf("list sets: %w", err)
	}
	return nil
}

// parseEntry reads an entry of a set. Without a prefix length, it is a single address.
func parseEntry(m ipsetID, data []byte) setEntry {
	e := setEntry{set: m}
	var addr, net netip.Addr
	var bits, netBits int
	for t, v := range nfnl.Attributes(data) {
		switch {
		case t == ipsetAttrIP:
			addr = parseIP(v)
		case t == ipsetAttrIP2:
			net = parseIP(v)
		case t == ipsetAttrCIDR && len(v) == 1:
			bits = int(v[0])
		case t == ipsetAttrCIDR2 && len(v) == 1:
			netBits = int(v[0])
		case t == ipsetAttrPort && len(v) == 2:
			e.port.Port = binary.BigEndian.Uint16(v)
		case t == ipsetAttrProto && len(v) == 1:
			e.port.Proto = state.Protocol(v[0])
		case t == ipsetAttrOptions && len(v) == 4:
			e.options = binary.BigEndian.Uint32(v)
		}
	}
	if bits == 0 {
		bits = addr.BitLen()
	}
	e.addr = netip.PrefixFrom(addr, bits)
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
