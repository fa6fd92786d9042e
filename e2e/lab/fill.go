package lab

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

const (
	// maxEntries bounds the size of a conntrack table that FillConntrack fills.
	maxEntries = 1 << 19
	// fillBatch is the number of entries in one write.
	fillBatch = 512
)

// Constants of linux/netfilter/nfnetlink_conntrack.h.
const (
	ctNew        = unix.NFNL_SUBSYS_CTNETLINK << 8
	ctDelete     = unix.NFNL_SUBSYS_CTNETLINK<<8 | 2
	ctTupleOrig  = 1
	ctTupleReply = 2
	ctStatus     = 3
	ctTimeout    = 7
	ctMark       = 8
	ctMarkMask   = 21
	ctTupleIP    = 1
	ctTupleProto = 2

	// ctAnswered is IPS_SEEN_REPLY, IPS_ASSURED and IPS_CONFIRMED: the kernel makes no room by
	// forgetting such an entry.
	ctAnswered = 1<<1 | 1<<2 | 1<<3
)

// fillMark marks these entries, to delete them.
var fillMark = []byte{0, 0, 0xf1, 0x11}

// FillConntrack adds UDP entries of no traffic, as many as one and the other percentage of the
// table's size differ; up to 100, until there is no room for one more.
func (n *Namespace) FillConntrack(from, to uint32) error {
	most, err := maxConntrack()
	if err != nil {
		return err
	}
	last := most / 100 * to
	if to == 100 {
		last = 2 * most
	}
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: int(n.handle)})
	if err != nil {
		return err
	}
	defer c.Close()
	// The kernel reports each entry of a batch that fails.
	if err := errors.Join(c.SetReadBuffer(4<<20), c.SetOption(netlink.CapAcknowledge, true)); err != nil {
		return err
	}
	for first := most / 100 * from; first < last; first += fillBatch {
		err := addEntries(c, first)
		if errors.Is(err, unix.ENOMEM) && to == 100 {
			return nil
		}
		if err != nil {
			return fmt.Errorf("conntrack of %s: %w", n.Name, err)
		}
	}
	if to == 100 {
		return fmt.Errorf("conntrack of %s: %d entries fit, want at most %d", n.Name, last, most)
	}
	return nil
}

// maxConntrack returns the size of each namespace's table.
func maxConntrack() (uint32, error) {
	text, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_max")
	if err != nil {
		return 0, err
	}
	most, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 32)
	if err == nil && most > maxEntries {
		err = fmt.Errorf("conntrack holds %d flows here, too many to fill it", most)
	}
	return uint32(most), err
}

// addEntries adds a batch. The kernel acknowledges the last one, and reports each that fails.
func addEntries(c *netlink.Conn, first uint32) error {
	batch := make([]netlink.Message, fillBatch)
	for i := range batch {
		attrs, err := entryAttributes(first + uint32(i))
		if err != nil {
			return err
		}
		batch[i] = netlink.Message{Data: append(ctHeader(), attrs...),
			Header: netlink.Header{Type: ctNew, Flags: netlink.Request | netlink.Create}}
	}
	batch[fillBatch-1].Header.Flags |= netlink.Acknowledge
	if _, err := c.SendMessages(batch); err != nil {
		return err
	}
	_, err := c.Receive()
	return err
}

// ctHeader is struct nfgenmsg.
func ctHeader() []byte { return []byte{unix.AF_INET, unix.NFNETLINK_V0, 0, 0} }

// EmptyConntrack deletes what FillConntrack has added.
func (n *Namespace) EmptyConntrack() error {
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: int(n.handle)})
	if err != nil {
		return err
	}
	defer c.Close()
	attributes := netlink.NewAttributeEncoder()
	attributes.Bytes(ctMark, fillMark)
	attributes.Bytes(ctMarkMask, []byte{0xff, 0xff, 0xff, 0xff})
	attrs, err := attributes.Encode()
	if err != nil {
		return err
	}
	_, err = c.Execute(netlink.Message{Data: append(ctHeader(), attrs...),
		Header: netlink.Header{Type: ctDelete, Flags: netlink.Request | netlink.Acknowledge}})
	if err != nil {
		return fmt.Errorf("conntrack of %s: delete by mark: %w", n.Name, err)
	}
	return nil
}

// entryAttributes returns the attributes of one of many flows.
func entryAttributes(number uint32) ([]byte, error) {
	dst := netip.AddrFrom4([4]byte{10, 98, 0, 1})
	client := netip.AddrFrom4([4]byte{10, 99, byte(number >> 16), byte(number >> 8)})
	port := uint16(1024 + number&0xff)
	attributes := netlink.NewAttributeEncoder()
	tuple := func(kind uint16, from, to netip.AddrPort) {
		attributes.Nested(kind, func(e *netlink.AttributeEncoder) error {
			e.Nested(ctTupleIP, func(e *netlink.AttributeEncoder) error {
				e.Bytes(1, from.Addr().AsSlice())
				e.Bytes(2, to.Addr().AsSlice())
				return nil
			})
			e.Nested(ctTupleProto, func(e *netlink.AttributeEncoder) error {
				e.Uint8(1, unix.IPPROTO_UDP)
				e.Bytes(2, []byte{byte(from.Port() >> 8), byte(from.Port())})
				e.Bytes(3, []byte{byte(to.Port() >> 8), byte(to.Port())})
				return nil
			})
			return nil
		})
	}
	from, to := netip.AddrPortFrom(client, port), netip.AddrPortFrom(dst, 53)
	tuple(ctTupleOrig, from, to)
	tuple(ctTupleReply, to, from)
	attributes.Bytes(ctStatus, []byte{0, 0, 0, ctAnswered})
	attributes.Bytes(ctMark, fillMark)
	attributes.Bytes(ctTimeout, []byte{0, 0, 2, 88}) // 600 s
	return attributes.Encode()
}
