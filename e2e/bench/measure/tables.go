package measure

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/e2e/lab"
)

// A Lookout waits for the first change of a node's tables that adds something in
// which certain bytes stand. It knows neither Fanfare's tables nor kube-proxy's,
// and times both in the same way: by when the kernel reported the change, having
// made it.
type Lookout struct {
	node   string
	ears   io.Closer
	found  chan time.Time // capacity 1
	failed chan error     // capacity 1

	mu   sync.Mutex
	want []byte // nil once it was found
}

// LookOut begins to look out for what is in want, on a node.
func LookOut(n *lab.Namespace, want []byte) (*Lookout, error) {
	l := &Lookout{node: n.Name, found: make(chan time.Time, 1), failed: make(chan error, 1), want: want}
	var err error
	l.ears, err = n.WatchTables(l.hear, func(err error) { l.failed <- err })
	return l, err
}

func (l *Lookout) hear(at time.Time, text []byte) error {
	messages, err := syscall.ParseNetlinkMessage(text)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, m := range messages {
		if l.want != nil && adds(m) && bytes.Contains(m.Data, l.want) {
			l.want = nil
			l.found <- at
		}
	}
	return nil
}

// adds says whether a message is of something new. Deletions name the same chains
// and elements.
func adds(m syscall.NetlinkMessage) bool {
	if int(m.Header.Type)>>8 != unix.NFNL_SUBSYS_NFTABLES {
		return false
	}
	switch int(m.Header.Type) & 0xff {
	case unix.NFT_MSG_NEWCHAIN, unix.NFT_MSG_NEWRULE, unix.NFT_MSG_NEWSETELEM:
		return true
	}
	return false
}

// Await returns when it was found, and ends the lookout.
func (l *Lookout) Await(ctx context.Context) (time.Time, error) {
	defer l.ears.Close()
	select {
	case at := <-l.found:
		return at, nil
	case err := <-l.failed:
		return time.Time{}, err
	case <-ctx.Done():
		return time.Time{}, fmt.Errorf("%s: nothing in its tables: %w", l.node, ctx.Err())
	}
}
