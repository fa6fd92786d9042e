package proxy

import (
	"encoding/binary"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/base/notify"
	"github.com/fanfare-lb/fanfare/internal/kernel/nfnl"
	"github.com/fanfare-lb/fanfare/proxy/iptables"
	"github.com/fanfare-lb/fanfare/proxy/obstacle"
	"github.com/fanfare-lb/fanfare/proxy/renderer"
)

// A watch listens to the kernel's notifications of nftables changes, as `nft monitor` does, and
// signals when another program changed our table.
type watch struct {
	conn  *netlink.Conn
	log   *slog.Logger
	dirty atomic.Bool // signalled, but not yet taken
	// rules records whether our rules are as they were written.
	rules *integrity
	// forward is like dirty for iptables' FORWARD. Only iptables-nft causes notifications;
	// iptables-legacy causes none.
	forward atomic.Bool
	// monitor receives changes of other tables; nil: not yet started.
	monitor atomic.Pointer[obstacle.Monitor]
	// iptables says that our rules are iptables chains, whose changes count too.
	iptables atomic.Bool
	notify   chan struct{}
	closed   chan struct{}
	done     chan struct{}
	once     sync.Once
}

// newWatch starts listening. Changes made by our own sockets, of these ports, are ignored.
func newWatch(log *slog.Logger, own ...uint32) (*watch, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, err
	}
	w := &watch{
		conn: conn, log: log, rules: newIntegrity(time.Now()), notify: make(chan struct{}, 1),
		closed: make(chan struct{}), done: make(chan struct{}),
	}
	if err := errors.Join(
		conn.SetReadBuffer(nfnl.BufferSize),
		conn.SetBPF(dropPorts(own)),
		conn.JoinGroup(unix.NFNLGRP_NFTABLES),
	); err != nil {
		conn.Close()
		return nil, err
	}
	go w.run()
	return w, nil
}

// dropPorts is a socket filter that drops notifications of changes by the sockets with these ports.
// A datagram holds messages of one transaction, so its first header suffices.
func dropPorts(ports []uint32) []bpf.RawInstruction {
	const nlmsgPid = 12 // offset of nlmsg_pid in nlmsghdr
	program := []bpf.Instruction{bpf.LoadAbsolute{Off: nlmsgPid, Size: 4}}
	for i, port := range ports {
		// The filter loads words in network order; the header is in host order.
		loaded := binary.BigEndian.Uint32(binary.NativeEndian.AppendUint32(nil, port))
		program = append(program, bpf.JumpIf{Cond: bpf.JumpEqual, Val: loaded, SkipTrue: uint8(len(ports) - i)})
	}
	raw, err := bpf.Assemble(append(program, bpf.RetConstant{Val: 0xffff_ffff}, bpf.RetConstant{Val: 0}))
	if err != nil {
		panic("BUG: " + err.Error()) // constants only
	}
	return raw
}

func (w *watch) run() {
	defer close(w.done)
	for {
		messages, err := w.conn.Receive()
		select {
		case <-w.closed:
			return
		default:
		}
		switch {
		case errors.Is(err, syscall.ENOBUFS):
			// Notifications were lost, perhaps of our table.
			w.lost("notifications of nftables were lost: the socket's buffer was full")
		case err != nil:
			w.log.Warn("nftables notifications", "err", err)
			w.lost("notifications of nftables were lost: " + err.Error())
			select { // not known to happen, but must not spin
			case <-w.closed:
			case <-time.After(time.Second):
			}
		}
		for _, m := range messages {
			switch {
			case w.foreign(m):
				w.disturb("another program changed table inet " + renderer.TableName)
			case w.iptables.Load() && ofOurChains(m):
				w.disturb("another program changed chains of iptables that are ours or lead to ours")
			}
			if l := w.monitor.Load(); l != nil && m.Header.Type>>8 == unix.NFNL_SUBSYS_NFTABLES {
				l.Receive(uint8(m.Header.Type), m.Data)
			}
			if ofForward(m) {
				w.forward.Store(true)
				w.notifyChanged()
			}
		}
	}
}

// foreign reports whether another program has changed our table.
func (w *watch) foreign(m netlink.Message) bool {
	return m.Header.Type>>8 == unix.NFNL_SUBSYS_NFTABLES && ofOurTable(m.Data)
}

// ofOurTable reports whether a notification is about our table. In all notifications about a table,
// its name is attribute 1.
func ofOurTable(data []byte) bool {
	const name = unix.NFTA_TABLE_NAME
	return len(data) >= nfnl.SizeofGenMsg && data[0] == unix.NFPROTO_INET &&
		nfnl.CString(nfnl.Attribute(data[nfnl.SizeofGenMsg:], name)) == renderer.TableName
}

// ofForward reports whether a notification may be about a change of iptables-nft that affects
// forwarded packets. Its other chains, which kube-proxy changes all the time, are ignored.
func ofForward(m netlink.Message) bool {
	table, chain, ok := ofIPTables(m)
	return ok && table == "filter" && (chain == "" || chain == "FORWARD" || chain == iptables.ForwardChain)
}

// ofOurChains reports whether a notification may be about our chains in iptables-nft, or about
// chains that lead to them.
func ofOurChains(m netlink.Message) bool {
	table, chain, ok := ofIPTables(m)
	jumps := iptables.Jumps[0][table]
	return ok && jumps != nil && (chain == "" || jumps[chain] != nil || iptables.Ours(chain))
}

// ofIPTables reads the iptables-nft table and chain of a notification. The chain is empty if it is
// about the whole table.
func ofIPTables(m netlink.Message) (table, chain string, ok bool) {
	if m.Header.Type>>8 != unix.NFNL_SUBSYS_NFTABLES || len(m.Data) < nfnl.SizeofGenMsg {
		return "", "", false
	}
	if family := m.Data[0]; family != unix.NFPROTO_IPV4 && family != unix.NFPROTO_IPV6 {
		return "", "", false
	}
	attributes := m.Data[nfnl.SizeofGenMsg:]
	table = nfnl.CString(nfnl.Attribute(attributes, unix.NFTA_TABLE_NAME))
	switch m.Header.Type & 0xff {
	case unix.NFT_MSG_NEWTABLE, unix.NFT_MSG_DELTABLE:
		return table, "", true
	case unix.NFT_MSG_NEWCHAIN, unix.NFT_MSG_DELCHAIN:
		return table, nfnl.CString(nfnl.Attribute(attributes, unix.NFTA_CHAIN_NAME)), true
	case unix.NFT_MSG_NEWRULE, unix.NFT_MSG_DELRULE:
		return table, nfnl.CString(nfnl.Attribute(attributes, unix.NFTA_RULE_CHAIN)), true
	default:
		return "", "", false
	}
}

// disturb signals that the table may differ from what was set, and why.
func (w *watch) disturb(reason string) {
	w.rules.doubt(reason, time.Now())
	w.dirty.Store(true)
	w.notifyChanged()
}

// lost signals that any change may have been missed, and why.
func (w *watch) lost(reason string) {
	w.forward.Store(true)
	w.disturb(reason)
}

func (w *watch) notifyChanged() {
	notify.Changed(w.notify)
}

// ignoringOwn runs change, which makes a known number of transactions, without listening: for each
// listener, the kernel holds several kilobytes for every element until the transaction is done. The
// generation number shows whether another program changed anything meanwhile; that counts as a
// disturbance.
func (w *watch) ignoringOwn(s *nfnl.Socket, transactions uint32, change func() error) error {
	before, err := s.Generation()
	if err != nil {
		return err
	}
	if err := w.conn.LeaveGroup(unix.NFNLGRP_NFTABLES); err != nil {
		return err
	}
	changed := change()
	if err := w.conn.JoinGroup(unix.NFNLGRP_NFTABLES); err != nil {
		w.lost("notifications of nftables cannot be received: " + err.Error())
		return errors.Join(changed, err)
	}
	want := before + transactions
	if changed != nil {
		want = before
	}
	if after, err := s.Generation(); err != nil || after != want {
		w.lost("nftables changed while the rules were loaded")
	}
	return changed
}

// take reports whether the table was disturbed since the last call.
func (w *watch) take() bool { return w.dirty.Swap(false) }

// takeForward is like take for iptables' FORWARD.
func (w *watch) takeForward() bool { return w.forward.Swap(false) }

func (w *watch) close() (err error) {
	w.once.Do(func() {
		close(w.closed)
		err = w.conn.Close()
		<-w.done
	})
	return err
}
