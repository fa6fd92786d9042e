package observer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// This file reads as much of nftables' netlink protocol as it takes to follow the elements
// that matter to a client's packet. The lab reads the kernel's own notifications and shares
// no code with the program that wrote the rules.

// Table is the name of Fanfare's table.
const Table = "fanfare"

// A role is the purpose of a set element.
type role int

const (
	vips      role = iota + 1 // addresses that Fanfare serves
	frontends                 // VIP . protocol . port -> verdict
	backends                  // VIP . protocol . port . slot -> backend
	inRange                   // as frontends, for allowed sources of a frontend with source ranges
)

// followed lists the table's sets and maps for clients outside the node, with the size of
// the address in their keys.
var followed = map[string]struct {
	role     role
	addrSize int
}{
	"vips4": {vips, 4}, "vips6": {vips, 16},
	"xsvc4": {frontends, 4}, "xsvc6": {frontends, 16},
	"xeps4": {backends, 4}, "xeps6": {backends, 16},
	"xinrange4": {inRange, 4}, "xinrange6": {inRange, 16},
}

// A frontendKey is the beginning of such a key.
type frontendKey struct {
	vip      netip.Addr
	protocol uint8  // 0 in the set of VIPs
	port     uint16 // likewise
}

// A change is an element that was added or deleted.
type change struct {
	in           role
	key          frontendKey
	added        bool
	forwards     bool // the frontend leads to backends instead of a refusal
	sourceRanges bool // the frontend leads to where the one in range of its key does
}

func (c change) String() string {
	verb := "deleted"
	if c.added {
		verb = "added"
	}
	if c.in == vips {
		return "address " + verb
	}
	return fmt.Sprintf("%d/%d %s, forwards %t", c.key.protocol, c.key.port, verb, c.forwards)
}

// WatchTables calls handle for each netlink message about nftables in the namespace,
// whichever program caused it, with the kernel's time, until the returned Listener is closed.
// Any error ends the watch and is passed to fail.
func WatchTables(n Namespace, name string, handle func(at time.Time, messages []byte) error,
	fail func(error)) (*Listener, error) {
	return Listen(n, "nftables of "+name, openTables, handle, fail)
}

// openTables opens a socket for nftables notifications in the calling thread's namespace.
func openTables(stamp func(socket int) error) (int, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return 0, err
	}
	if err := stamp(fd); err != nil {
		return 0, errors.Join(err, unix.Close(fd))
	}
	return fd, unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1 << (unix.NFNLGRP_NFTABLES - 1)})
}

// add adds one message. The kernel ends the notifications of a transaction with the number
// of the new generation.
func (e *tableEvent) add(m syscall.NetlinkMessage) (end bool, err error) {
	const genmsg = 4 // struct nfgenmsg before the attributes
	if int(m.Header.Type)>>8 != unix.NFNL_SUBSYS_NFTABLES || len(m.Data) < genmsg {
		return false, nil
	}
	attrs := m.Data[genmsg:]
	switch int(m.Header.Type) & 0xff {
	case unix.NFT_MSG_NEWGEN:
		return true, nil
	case unix.NFT_MSG_DELTABLE:
		name, err := stringAttribute(attrs, unix.NFTA_TABLE_NAME)
		if err == nil && name == Table {
			// The table's content before this transaction's additions was deleted.
			e.deleted = true
		}
		return false, err
	case unix.NFT_MSG_NEWSETELEM:
		return false, e.addElements(attrs, true)
	case unix.NFT_MSG_DELSETELEM:
		return false, e.addElements(attrs, false)
	}
	return false, nil
}

func (e *tableEvent) addElements(attrs []byte, added bool) error {
	ad, err := netlink.NewAttributeDecoder(attrs)
	if err != nil {
		return err
	}
	var in, set string
	for ad.Next() {
		switch ad.Type() {
		case unix.NFTA_SET_ELEM_LIST_TABLE:
			in = ad.String()
		case unix.NFTA_SET_ELEM_LIST_SET:
			set = ad.String()
		case unix.NFTA_SET_ELEM_LIST_ELEMENTS:
			if m, ok := followed[set]; ok && in == Table {
				like := change{added: added, in: m.role}
				ad.Nested(func(list *netlink.AttributeDecoder) error { return e.addList(list, m.addrSize, like) })
			}
		}
	}
	return ad.Err()
}

func (e *tableEvent) addList(list *netlink.AttributeDecoder, addrSize int, like change) error {
	for list.Next() {
		c := like
		var err error
		list.Nested(func(elem *netlink.AttributeDecoder) error {
			for elem.Next() {
				switch elem.Type() {
				case unix.NFTA_SET_ELEM_KEY:
					elem.Nested(func(d *netlink.AttributeDecoder) error {
						c.key, err = decodeKey(d, addrSize)
						return err
					})
				case unix.NFTA_SET_ELEM_DATA:
					elem.Nested(func(d *netlink.AttributeDecoder) error {
						c.forwards, c.sourceRanges = destination(d)
						return nil
					})
				}
			}
			return nil
		})
		e.changes = append(e.changes, c)
	}
	return nil
}

// decodeKey reads an address, or a concatenation that begins with one. Each part of a
// concatenation is padded to four bytes.
func decodeKey(d *netlink.AttributeDecoder, addrSize int) (k frontendKey, err error) {
	for d.Next() {
		if d.Type() != unix.NFTA_DATA_VALUE {
			continue
		}
		b := d.Bytes()
		if len(b) < addrSize {
			return k, fmt.Errorf("key of %d bytes: want an address of %d", len(b), addrSize)
		}
		k.vip, _ = netip.AddrFromSlice(b[:addrSize])
		if len(b) >= addrSize+8 {
			k.protocol, k.port = b[addrSize], binary.BigEndian.Uint16(b[addrSize+4:])
		}
	}
	return k, nil
}

// destination says where a frontend's number leads. 10:1 to 1f:… and 30:1 to 3f:… are chains
// that select one of n backends, for clients outside this node and for all. 1:1 to 1:4 refuse,
// 1:5 asks for the source first, and 1:6 to 1:c first look for affinity or take turns.
func destination(d *netlink.AttributeDecoder) (forwards, sourceRanges bool) {
	for d.Next() {
		b := d.Bytes()
		if d.Type() != unix.NFTA_DATA_VALUE || len(b) != 4 {
			continue
		}
		number := binary.NativeEndian.Uint32(b)
		major, minor := number>>16, number&0xffff
		sourceRanges = major == 1 && minor == 5
		forwards = major>>4 == 1 || major>>4 == 3 || major == 1 && minor > 5
	}
	return forwards, sourceRanges
}

func stringAttribute(attrs []byte, kind uint16) (string, error) {
	ad, err := netlink.NewAttributeDecoder(attrs)
	if err != nil {
		return "", err
	}
	for ad.Next() {
		if ad.Type() == kind {
			return ad.String(), nil
		}
	}
	return "", ad.Err()
}
