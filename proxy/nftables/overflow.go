package nftables

import (
	"encoding/binary"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/nfnl"
	"github.com/fanfare-lb/fanfare/proxy/renderer"
)

// An Overflow counts how often a client could not be remembered, because the map of
// affinity was full. It asks the kernel by a socket of its own, so that no caller
// waits for a Set.
type Overflow struct {
	mu   sync.Mutex
	sock *nfnl.Socket // nil when closed
	last uint64
}

// NewOverflow opens a connection to the kernel. A Registerer, if there is one, gets the count
// as a metric.
func NewOverflow(r prometheus.Registerer) (*Overflow, error) {
	sock, err := nfnl.Dial()
	if err != nil {
		return nil, err
	}
	o := &Overflow{sock: sock}
	if r != nil {
		err = r.Register(prometheus.NewCounterFunc(prometheus.CounterOpts{
			Namespace: "fanfare", Subsystem: "proxy", Name: "affinity_full_total",
			Help: "New flows whose client could not be remembered for affinity, since the map was full.",
		}, func() float64 { return float64(o.Count()) }))
	}
	if err != nil {
		sock.Close()
		return nil, err
	}
	return o, nil
}

// Count is the number of flows since the rules were loaded, or the last one known
// if the kernel does not tell.
func (o *Overflow) Count() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.sock != nil {
		if n, err := countedBy(o.sock, chainFull); err == nil {
			o.last = n
		}
	}
	return o.last
}

// Close ends the connection to the kernel.
func (o *Overflow) Close() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.sock == nil {
		return nil
	}
	s := o.sock
	o.sock = nil
	return s.Close()
}

// countedBy is the packets that the counters of a chain have counted; zero where
// there is no such chain.
func countedBy(s *nfnl.Socket, chain string) (packets uint64, err error) {
	var e nfnl.Encoder
	e.Text(unix.NFTA_RULE_TABLE, renderer.TableName)
	e.Text(unix.NFTA_RULE_CHAIN, chain)
	err = list(s, unix.NFT_MSG_GETRULE, e.B, func() { packets = 0 }, func(data []byte) {
		// Old kernels ignore the table and the chain in the request.
		if nfnl.CString(nfnl.Attribute(data, unix.NFTA_RULE_TABLE)) != renderer.TableName || nfnl.CString(nfnl.Attribute(data, unix.NFTA_RULE_CHAIN)) != chain {
			return
		}
		for _, expr := range nfnl.Attributes(nfnl.Attribute(data, unix.NFTA_RULE_EXPRESSIONS)) {
			if nfnl.CString(nfnl.Attribute(expr, unix.NFTA_EXPR_NAME)) != "counter" {
				continue
			}
			if n := nfnl.Attribute(expr, unix.NFTA_EXPR_DATA, unix.NFTA_COUNTER_PACKETS); len(n) == 8 {
				packets += binary.BigEndian.Uint64(n)
			}
		}
	})
	return packets, err
}
