package lab

import (
	"io"
	"time"
)

// HearTables calls heard with the netlink messages by which the kernel reports changes of a
// node's tables, by any program, and with the kernel's own time, until it is closed. An error of any kind ends it, and goes to fail.
func (n *Namespace) HearTables(heard func(at time.Time, messages []byte) error, fail func(error)) (io.Closer, error) {
	l, err := listen(n, "nftables of "+n.Name, openTables, heard, fail)
	if err != nil {
		return nil, err
	}
	return closer{l}, nil
}

type closer struct{ *listener }

func (c closer) Close() error {
	c.close()
	return nil
}
