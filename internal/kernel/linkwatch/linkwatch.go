package linkwatch

import (
	"context"
	"errors"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/base/notify"
)

// retryTime is the delay before the watch subscribes again after a failure.
const retryTime = time.Second

// Run signals changes in the namespace of the calling thread until ctx ends. groups are
// those to subscribe to, such as unix.RTNLGRP_LINK. A new subscription counts as a change:
// notifications may have been lost before.
func Run(ctx context.Context, changed chan<- struct{}, groups ...uint) {
	RunProtocol(ctx, changed, unix.NETLINK_ROUTE, groups...)
}

// RunProtocol is Run for another protocol than routing's, such as unix.NETLINK_XFRM. It returns if the kernel does
// not have it: each attempt would have the kernel look for a module.
func RunProtocol(ctx context.Context, changed chan<- struct{}, protocol int, groups ...uint) {
	for ctx.Err() == nil {
		socket, err := nl.Subscribe(protocol, groups...)
		if errors.Is(err, unix.EPROTONOSUPPORT) {
			return
		}
		if err == nil {
			stop := context.AfterFunc(ctx, socket.Close)
			read(socket, changed)
			stop()
			socket.Close()
		}
		select {
		case <-time.After(retryTime):
		case <-ctx.Done():
		}
	}
}

// read signals each notification, and each overflow of the socket's buffer, until the socket
// fails or is closed.
func read(socket *nl.NetlinkSocket, changed chan<- struct{}) {
	for err := error(nil); err == nil || errors.Is(err, unix.ENOBUFS); _, _, err = socket.Receive() {
		notify.Changed(changed)
	}
}
