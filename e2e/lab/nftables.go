package lab

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Just enough of nftables' netlink protocol to follow the elements of the maps
// that lead a client's packet to a frontend. The lab reads what the kernel says
// itself, and shares no code with what wrote it.

// table is Fanfare's, and frontendMaps are its maps from VIP . protocol . port to
// a verdict for clients outside the node.
const table = "fanfare"

var frontendMaps = map[string]int{"xsvc4": 4, "xsvc6": 16} // name -> bytes of an address

// A frontendKey is a key of these maps.
type frontendKey struct {
	vip      netip.Addr
	protocol uint8
	port     uint16
}

// A frontendChange is a map's element that was added or deleted.
type frontendChange struct {
	key      frontendKey
	added    bool
	forwards bool // its verdict leads to backends, rather than to a refusal
}

// subscribeTables asks for the notifications of a namespace.
func subscribeTables(n *Namespace) (*netlink.Conn, error) {
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: int(n.handle)})
	if err != nil {
		return nil, err
	}
	// The kernel drops what does not fit.
	if err := c.SetReadBuffer(8 << 20); err != nil {
		c.Close()
		return nil, err
	}
	if err := c.JoinGroup(unix.NFNLGRP_NFTABLES); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// add takes in one message. The kernel ends a transaction's notifications with
// the number of the new generation.
func (e *tableEvent) add(m netlink.Message) (end bool, err error) {
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
		if err == nil && name == table {
			// What was there before this transaction's additions is gone.
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
			if size := frontendMaps[set]; in == table && size > 0 {
				ad.Nested(func(list *netlink.AttributeDecoder) error { return e.addList(list, size, added) })
			}
		}
	}
	return ad.Err()
}

func (e *tableEvent) addList(list *netlink.AttributeDecoder, addrSize int, added bool) error {
	for list.Next() {
		c := frontendChange{added: added}
		var err error
		list.Nested(func(elem *netlink.AttributeDecoder) error {
			for elem.Next() {
				switch elem.Type() {
				case unix.NFTA_SET_ELEM_KEY:
					elem.Nested(func(d *netlink.AttributeDecoder) error { c.key, err = decodeKey(d, addrSize); return err })
				case unix.NFTA_SET_ELEM_DATA:
					elem.Nested(func(d *netlink.AttributeDecoder) error { c.forwards = leadsToBackends(d); return nil })
				}
			}
			return nil
		})
		e.changes = append(e.changes, c)
	}
	return nil
}

// decodeKey reads a concatenation: each part is padded to four bytes.
func decodeKey(d *netlink.AttributeDecoder, addrSize int) (k frontendKey, err error) {
	for d.Next() {
		if d.Type() != unix.NFTA_DATA_VALUE {
			continue
		}
		b := d.Bytes()
		if len(b) < addrSize+8 {
			return k, fmt.Errorf("key of %d bytes: want %d", len(b), addrSize+8)
		}
		k.vip, _ = netip.AddrFromSlice(b[:addrSize])
		k.protocol = b[addrSize]
		k.port = binary.BigEndian.Uint16(b[addrSize+4:])
	}
	return k, nil
}

// leadsToBackends says whether a verdict goes to one of the chains x1, x2, …,
// which choose among so many backends.
func leadsToBackends(d *netlink.AttributeDecoder) (yes bool) {
	for d.Next() {
		if d.Type() != unix.NFTA_DATA_VERDICT {
			continue
		}
		d.Nested(func(v *netlink.AttributeDecoder) error {
			for v.Next() {
				if v.Type() == unix.NFTA_VERDICT_CHAIN {
					chain := string(bytes.TrimRight(v.Bytes(), "\x00"))
					yes = strings.HasPrefix(chain, "x") && strings.Trim(chain[1:], "0123456789") == ""
				}
			}
			return nil
		})
	}
	return yes
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
