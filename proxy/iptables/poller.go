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

	"github.com/fanfare-lb/fanfare/internal/kernel/nfnl"
)

const (
	// pollInterval is the time between two polls. Each takes a few system calls, whatever the
	// number of rules.
	pollInterval = time.Second
	// pollPause is the minimum time between two reports of changes of legacy tables. Other
	// programs may change them all the time, and each report makes Set read every rule.
	pollPause = 20 * time.Second
)

// A Poller detects changes of ipset and of iptables-legacy by other programs. The kernel sends
// no notification of those, so it compares counts of entries and rules every second. The next
// full check finds changes that do not affect the counts. Its methods may be called from any
// goroutine; Pause, Settle and Close of a nil Poller do nothing.
type Poller struct {
	// disturb receives why Fanfare's rules may have changed, and lost why any table may have.
	disturb, lost func(reason string)
	sock          *nfnl.Socket
	xt            [2]int // sockets that read the legacy tables, by family; -1 if not in use

	mu       sync.Mutex
	settled  bool      // no Set is under way, and the counts are those after the last one
	sets     string    // the counts of sets, as text to compare
	tables   string    // the counts of tables
	reported time.Time // when a change of tables was last reported

	quit chan struct{}
	done chan struct{}
	once sync.Once
}

// NewPoller starts a goroutine that polls for the programs in use, until Close. Its sockets are
// of the calling thread's network namespace. It reports nothing before the first Settle.
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

// Poll compares the counts with those after the last Set, and reports a difference once. Counts
// that cannot be read are left to the next full check. It is exported for the tests of package
// proxy, which do not wait for the ticker.
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
		p.lost("another program changed tables of iptables-legacy") // FORWARD may have changed too
	}
}

// Pause stops comparing before the proxy changes rules. It reports earlier changes first, since
// afterwards the counts include the proxy's own changes.
func (p *Poller) Pause() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.compare()
	p.settled = false
}

// Settle takes the present counts as the expected ones and compares again. The proxy calls it
// after its own changes. If the counts cannot be read, comparing stays off until the next Settle.
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

// countSets returns the numbers of entries and of references by rules of each set of Fanfare.
// Entries of affinity sets do not count: the kernel adds and expires them.
func (p *Poller) countSets() (string, error) {
	var all []string
	err := listSets(p.sock, "", ipsetListHeader, func(data []byte) {
		name := nfnl.CString(nfnl.Attribute(data, ipsetAttrName))
		if !strings.HasPrefix(name, ipsetPrefix) {
			return
		}
		header := nfnl.Attribute(data, ipsetAttrData)
		elements := nfnl.Uint32(nfnl.Attribute(header, ipsetAttrElements))
		if remembers(name) {
			elements = 0
		}
		all = append(all, fmt.Sprint(name, " ", nfnl.CString(nfnl.Attribute(data, ipsetAttrKind)), " ", elements, " ",
			nfnl.Uint32(nfnl.Attribute(header, ipsetAttrReferences))))
	})
	slices.Sort(all)
	return strings.Join(all, "\n"), err
}

// remembers reports whether a set is one of affinity.
func remembers(name string) bool {
	return strings.HasPrefix(name, affinityPrefix(0)) || strings.HasPrefix(name, affinityPrefix(1))
}

// Full returns the names of the sets of affinity that are full: each new client takes the place of
// another one. It returns none for a nil Poller.
func (p *Poller) Full() (names []string) {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = listSets(p.sock, "", ipsetListHeader, func(data []byte) {
		name := nfnl.CString(nfnl.Attribute(data, ipsetAttrName))
		if remembers(name) && nfnl.Uint32(nfnl.Attribute(data, ipsetAttrData, ipsetAttrElements)) >= maxClients {
			names = append(names, name)
		}
	})
	return names
}

// tableInfo is struct ipt_getinfo of linux/netfilter_ipv4/ip_tables.h, which equals struct
// ip6t_getinfo. The kernel writes into it, so layout and size must not change.
type tableInfo struct {
	name       [32]byte
	validHooks uint32
	hookEntry  [5]uint32
	underflow  [5]uint32
	entries    uint32
	size       uint32
}

const getTableInfo = 64 // IPT_SO_GET_INFO, IP6T_SO_GET_INFO

// countTables returns the number of rules of each legacy table, its size in bytes, and the
// offsets at which the built-in chains begin.
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

// Close stops the goroutine and closes the sockets. It waits for a poll that is under way, and
// may be called more than once.
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
