package fastpath

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/kernel/nfnl"
)

// leaving is a flow whose fragments overtake each other: only the stack can reassemble them. Its
// packets are left to the rules, once conntrack knows its backend.
type leaving struct {
	key  kernelTuple // of the client's entry
	flow kernelFlow
}

// findLeaving records a flow that the program marked, by the entry of either direction.
func (w *walk) findLeaving(key kernelTuple, f *kernelFlow) {
	if f.State&flowLeave == 0 {
		return
	}
	if key.Direction == inward {
		there, found := w.lookup(key.forward(f))
		if !found {
			return
		}
		key, f = key.forward(f), there
	}
	w.leaving[key] = *f
}

// move moves flows to the rules. A flow that conntrack does not accept stays where it is, and
// the next walk tries again.
func (w *walk) move() error {
	if len(w.leaving) == 0 {
		return nil
	}
	s, err := nfnl.Dial()
	if err != nil {
		return fmt.Errorf("move flows to conntrack: %w", err)
	}
	defer s.Close()
	var errs []error
	for key, f := range w.leaving {
		l := leaving{key, f}
		if err := track(s, l); err != nil && !errors.Is(err, unix.EEXIST) {
			errs = append(errs, fmt.Errorf("move the flow of %s to conntrack: %w", l.key.Source.port(l.key.SourcePort),
				err))
			continue
		}
		errs = append(errs, w.leave(l))
	}
	return errors.Join(errs...)
}

// leave leaves a flow to the rules. Datagrams would begin another flow here, so that an entry
// keeps them out; of TCP, only a SYN does.
func (w *walk) leave(l leaving) error {
	if l.key.Protocol == TCP {
		w.end(l.key, &l.flow)
		return nil
	}
	left := kernelFlow{Seen: seconds(), State: flowLeft}
	if err := w.path.kernel.Flows.Update(l.key, left, ebpf.UpdateExist); err != nil {
		return ignoreNotExist(err)
	}
	return ignoreNotExist(w.path.kernel.Flows.Delete(l.key.reply(&l.flow)))
}

// Attributes of conntrack's netlink messages, from linux/netfilter/nfnetlink_conntrack.h.
const (
	ctNew = 0 // IPCTNL_MSG_CT_NEW

	ctTupleOrig  = 1
	ctTupleReply = 2
	ctStatus     = 3
	ctProtoInfo  = 4
	ctNATSource  = 6
	ctTimeout    = 7
	ctNATDest    = 13
)

// Attributes of tuples and NAT.
const (
	ctTupleIP, ctTupleProto = 1, 2

	ctProtoNumber, ctProtoSource, ctProtoDest = 1, 2, 3

	ctNATMinIP, ctNATMaxIP, ctNATProto = 1, 2, 3 // the first two of IPv4
	ctNATMinIP6, ctNATMaxIP6           = 4, 5
	ctNATPortMin, ctNATPortMax         = 1, 2
)

// Attributes and values of a TCP connection. Conntrack has not followed its sequence numbers,
// and must not check them (liberal).
const (
	ctTCP                               = 1
	ctTCPState                          = 1
	ctTCPFlagsOriginal, ctTCPFlagsReply = 4, 5
	tcpEstablished, tcpLiberal          = 3, 8
)

// trackedStatus is the status of an entry with packets in both directions, from
// linux/netfilter/nf_conntrack_common.h: seen reply, assured, confirmed.
const trackedStatus = 1<<1 | 1<<2 | 1<<3

// track makes conntrack's entry of a flow.
func track(s *nfnl.Socket, l leaving) error {
	if err := s.Send(trackRequest(l)); err != nil {
		return err
	}
	for r, err := range s.Replies(false) {
		if err != nil {
			return err
		}
		if r.Kind == unix.NLMSG_ERROR {
			return r.Errno()
		}
	}
	return errors.New("no response from the kernel")
}

// trackRequest is the message for an entry as the rules would have it: the destination is
// translated, and the source if the program gave the client another port.
func trackRequest(l leaving) []byte {
	client, vip := l.key.Source.port(l.key.SourcePort), l.key.Destination.port(l.key.DestinationPort)
	backend := l.flow.Address.port(l.flow.Port)
	family, timeout := uint8(unix.AF_INET), uint32(udpStreamTimeout)
	if vip.Addr().Is6() {
		family = unix.AF_INET6
	}
	if l.key.Protocol == TCP {
		timeout = establishedTimeout
	}
	var e nfnl.Encoder
	e.Message(unix.NFNL_SUBSYS_CTNETLINK, ctNew, unix.NLM_F_REQUEST|unix.NLM_F_ACK|unix.NLM_F_CREATE|unix.NLM_F_EXCL, 1,
		family, func() {
			appendTuple(&e, ctTupleOrig, client, vip, l.key.Protocol)
			appendTuple(&e, ctTupleReply, vip, client, l.key.Protocol) // the kernel translates it
			appendNAT(&e, ctNATDest, backend)
			if l.flow.ClientPort != l.key.SourcePort {
				appendNAT(&e, ctNATSource, netip.AddrPortFrom(client.Addr(), l.flow.ClientPort))
			}
			e.Uint32(ctStatus, trackedStatus)
			e.Uint32(ctTimeout, timeout)
			if l.key.Protocol == TCP {
				appendEstablished(&e)
			}
		})
	return e.B
}

// appendNested appends an attribute that consists of attributes.
func appendNested(e *nfnl.Encoder, kind uint16, body func()) {
	start := e.Open(kind)
	body()
	e.Close(start)
}

// appendPort appends a port, in network byte order.
func appendPort(e *nfnl.Encoder, kind, port uint16) {
	e.Bytes(kind, binary.BigEndian.AppendUint16(nil, port))
}

// appendTuple appends the addresses of one direction.
func appendTuple(e *nfnl.Encoder, kind uint16, from, to netip.AddrPort, protocol uint8) {
	source, destination := uint16(1), uint16(2) // CTA_IP_V4_*
	if from.Addr().Is6() {
		source, destination = 3, 4
	}
	appendNested(e, kind, func() {
		appendNested(e, ctTupleIP, func() {
			e.Bytes(source, from.Addr().AsSlice())
			e.Bytes(destination, to.Addr().AsSlice())
		})
		appendNested(e, ctTupleProto, func() {
			e.Bytes(ctProtoNumber, []byte{protocol})
			appendPort(e, ctProtoSource, from.Port())
			appendPort(e, ctProtoDest, to.Port())
		})
	})
}

// appendNAT appends what an address is translated to.
func appendNAT(e *nfnl.Encoder, kind uint16, to netip.AddrPort) {
	low, high := uint16(ctNATMinIP), uint16(ctNATMaxIP)
	if to.Addr().Is6() {
		low, high = ctNATMinIP6, ctNATMaxIP6
	}
	appendNested(e, kind, func() {
		e.Bytes(low, to.Addr().AsSlice())
		e.Bytes(high, to.Addr().AsSlice())
		appendNested(e, ctNATProto, func() {
			appendPort(e, ctNATPortMin, to.Port())
			appendPort(e, ctNATPortMax, to.Port())
		})
	})
}

// appendEstablished appends the state of a TCP connection.
func appendEstablished(e *nfnl.Encoder) {
	appendNested(e, ctProtoInfo, func() {
		appendNested(e, ctTCP, func() {
			e.Bytes(ctTCPState, []byte{tcpEstablished})
			e.Bytes(ctTCPFlagsOriginal, []byte{tcpLiberal, tcpLiberal}) // flags and mask
			e.Bytes(ctTCPFlagsReply, []byte{tcpLiberal, tcpLiberal})
		})
	})
}
