package obstacle

import (
	"errors"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/nfnl"
	"github.com/fanfare-lb/fanfare/internal/notify"
)

// From linux/netconf.h and linux/rtnetlink.h.
const (
	rtmNewNetconf   = 80
	groupNetconf4   = 24
	groupNetconf6   = 25
	netconfHeader   = 4 // struct netconfmsg, padded
	netconfForward  = 2 // NETCONFA_FORWARDING
	netconfRPFilter = 3 // NETCONFA_RP_FILTER
)

// watchForwarding looks soon after the kernel reports that a sysctl for forwarding was set. It
// must be called on the thread in the namespace. Without such reports, a look once in a while
// finds the change.
func (l *Monitor) watchForwarding() (stop func()) {
	socket, err := nl.Subscribe(unix.NETLINK_ROUTE, groupNetconf4, groupNetconf6)
	if err != nil {
		l.log.Warn("changes of forwarding cannot be watched", "err", err)
		return func() {}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			messages, _, err := socket.Receive()
			if err != nil { // closed, or the buffer overflowed, with changes of forwarding perhaps
				notify.Changed(l.soon)
				if !errors.Is(err, unix.ENOBUFS) {
					return
				}
			}
			for _, m := range messages {
				if m.Header.Type == rtmNewNetconf && setsForwarding(m.Data) {
					notify.Changed(l.soon)
				}
			}
		}
	}()
	return func() {
		socket.Close()
		<-done
	}
}

// setsForwarding reports whether a message is about a change of forwarding, rather than about a new
// interface, whose message has all attributes.
func setsForwarding(data []byte) bool {
	if len(data) < netconfHeader {
		return false
	}
	all := data[netconfHeader:]
	return nfnl.Attribute(all, netconfForward) != nil && nfnl.Attribute(all, netconfRPFilter) == nil
}
