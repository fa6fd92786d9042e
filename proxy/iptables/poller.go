package iptables

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/nfnl"
)

const (
	// pollInterval is how often the counts that have no notification are read: some system
	// calls, whatever the number of rules.
	pollInterval = time.Second
	// pollPause is the least time between two reports of changes of legacy tables. Other
	// programs may change them all the time, and each report makes Set read every rule.
	pollPause = 20 * time.Second
)

// A Poller finds changes of ipset and of iptables-legacy, for which the kernel sends no
// notification, by counting. Changes that leave the counts alone are left to the next
// full check. A nil poller does nothing.
type Poller struct {
	// disturb and lost take why rules, or any tables, may have changed.
	disturb, lost func(reason string)
	sock          *nfnl.Socket
	xt            [2]int // sockets that read the legacy tables of a family; -1 where they are not used

	mu       sync.Mutex
	settled  bool // no Set is under way, and counts are those after the last
	sets     string
	tables   string
	reported time.Time // that tables differ

	quit chan struct{}
	done chan struct{}
	once sync.Once
}

// NewPoller begins to count for the programs in use, with sockets of the calling thread's
// namespace.
func NewPoller(disturb, lost func(reason string), programs [2]*Program) (*Poller, error) {
	p := &Poller{disturb: disturb, lost: lost, xt: [2]int{-1, -1}, quit: make(chan struct{}), done: make(chan struct{})}
	var err error
	if p.sock, err = nfnl.Dial(); err != nil {
		return nil, err
	}
	for f, i := range programs {
		if i == nil || !i.Legacy() {
			continue
		}
		domain := [2]int{unix.AF_INET, unix.AF_INET6}[f]
		if p.xt[f], err = unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return nil, errors.Join(fmt.Errorf("socket for tables: %w", err), p.release())
		}
	}
	go p.run()
	return p, nil
}

func (p *Poller) run() {
	defer close(p.done)
	t := time.NewTicker(pollInterval)
	defer t.Stop()
	for {
		select {
		case <-p.quit:
			return
		case <-t.C:
			p.Poll()
		}
	}
}

// Poll compares the counts with those after the last Set, and reports a difference
// once. What cannot be read is left to the next full check.
func (p *Poller) Poll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.compare()
}

func (p *Poller) compare() {
	if !p.settled {
		return
	}
	if sets, err := p.countSets(); err == nil && sets != p.sets {
		p.sets = sets
		p.disturb("another program changed sets of ipset")
	}
	if time.Since(p.reported) < pollPause {
		return
	}
	if tables, err := p.countTables(); err == nil && tables != p.tables {
		p.tables, p.reported = tables, time.Now()
		p.lost("another program changed tables of iptables-legacy") // FORWARD may be among what has changed
	}
}

// Pause announces changes of our own. Earlier changes are reported first, so that they are
// not taken for our own.
func (p *Poller) Pause() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.compare()
	p.settled = false
}

// Settle takes the present counts as the wanted ones.
func (p *Poller) Settle() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	var err error
	if p.sets, err = p.countSets(); err == nil {
		p.tables, err = p.countTables()
	}
	p.settled = err == nil
}

// From linux/netfilter/ipset/ip_set.h.
const (
	ipsetListHeader     = 1 << 2 // IPSET_FLAG_LIST_HEADER: without entries
	ipsetAttrElements   = 24
	ipsetAttrReferences = 25
)

// countSets is the number of entries of each of our sets, and of rules that use it. Affinity
// entries do not count: the kernel adds and expires them.
func (p *Poller) countSets() (string, error) {
	var all []string
	err := listAllSets(p.sock, ipsetListHeader, func(data []byte) {
		name := nfnl.CString(nfnl.Attribute(data, ipsetAttrName))
		if !strings.HasPrefix(name, SetPrefix) {
			return
		}
		header := nfnl.Attribute(data, AttrData)
		elements := nfnl.Uint32(nfnl.Attribute(header, ipsetAttrElements))
		if strings.HasPrefix(name, AffinityPrefix(0)) || strings.HasPrefix(name, AffinityPrefix(1)) {
			elements = 0
		}
		all = append(all, fmt.Sprint(name, " ", nfnl.CString(nfnl.Attribute(data, ipsetAttrKind)), " ", elements, " ", nfnl.Uint32(nfnl.Attribute(header, ipsetAttrReferences))))
	})
	slices.Sort(all)
	return strings.Join(all, "\n"), err
}

// tableInfo is struct ipt_getinfo of linux/netfilter_ipv4/ip_tables.h, and the same of
// ip6_tables.h.
type tableInfo struct {
	name       [32]byte
	validHooks uint32
	hookEntry  [5]uint32
	underflow  [5]uint32
	entries    uint32
	size       uint32
}

const getTableInfo = 64 // IPT_SO_GET_INFO, IP6T_SO_GET_INFO

// countTables is the number of rules of the legacy tables, their size, and where each hook
// begins.
func (p *Poller) countTables() (string, error) {
	var all []string
	for f, fd := range p.xt {
		if fd < 0 {
			continue
		}
		for _, table := range xtTables {
			var info tableInfo
			copy(info.name[:], table)
			size := uint32(unsafe.Sizeof(info))
			level := [2]uintptr{unix.IPPROTO_IP, unix.IPPROTO_IPV6}[f]
			_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), level, getTableInfo,
				uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&size)), 0)
			if errno != 0 {
				return "", fmt.Errorf("table %s: %w", table, errno)
			}
			all = append(all, fmt.Sprint(table, info.hookEntry, info.entries, info.size))
		}
	}
	return strings.Join(all, "\n"), nil
}

func (p *Poller) release() error {
	err := p.sock.Close()
	for _, fd := range p.xt {
		if fd >= 0 {
			err = errors.Join(err, unix.Close(fd))
		}
	}
	return err
}

func (p *Poller) Close() (err error) {
	if p == nil {
		return nil
	}
	p.once.Do(func() {
		close(p.quit)
		<-p.done
		err = p.release()
	})
	return err
}
