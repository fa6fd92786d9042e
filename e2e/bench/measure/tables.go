package measure

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/e2e/lab"
	"github.com/fanfare-lb/fanfare/e2e/observer"
)

// A TableWatch waits for the first change of a node's nftables that adds an object
// containing each of some byte strings. It treats Fanfare's and kube-proxy's tables alike: the time is
// that of the kernel's notification.
type TableWatch struct {
	node   string
	closer *observer.Listener
	found  chan time.Time // capacity 1
	failed chan error     // capacity 1

	mu   sync.Mutex
	want [][]byte // nil after it was found
}

// WatchTable starts a TableWatch on a node.
func WatchTable(n *lab.Namespace, want ...[]byte) (*TableWatch, error) {
	l := &TableWatch{node: n.Name, found: make(chan time.Time, 1), failed: make(chan error, 1), want: want}
	var err error
	l.closer, err = observer.WatchTables(n, n.Name, l.handle, func(err error) { l.failed <- err })
	return l, err
}

func (l *TableWatch) handle(at time.Time, text []byte) error {
	messages, err := syscall.ParseNetlinkMessage(text)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, m := range messages {
		if l.want != nil && adds(m) && !slices.ContainsFunc(l.want,
			func(w []byte) bool { return !bytes.Contains(m.Data, w) }) {
			l.want = nil
			l.found <- at
		}
	}
	return nil
}

// adds says whether a message adds an object. Deletions contain the same chains and
// elements.
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

// Await returns when the addition was found, and ends the watch.
func (l *TableWatch) Await(ctx context.Context) (time.Time, error) {
	defer l.closer.Close()
	select {
	case at := <-l.found:
		return at, nil
	case err := <-l.failed:
		return time.Time{}, err
	case <-ctx.Done():
		return time.Time{}, fmt.Errorf("%s: no such addition to its tables: %w", l.node, ctx.Err())
	}
}
