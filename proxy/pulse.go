package proxy

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// pulseInterval is how often the kernel is asked what it tells nobody: some system
	// calls, whatever the number of rules.
	pulseInterval = time.Second
	// pulsePause is the least time between two checks for what others do in old
	// tables. They may do so all the time, and a check reads every rule.
	pulsePause = 20 * time.Second
)

// A pulse, where it is not nil, notices changes of ipset and of the old tables of iptables, of which the kernel
// sends no notification, by counting. What leaves the counts as they were is left to the
// next full check.
type pulse struct {
	watch *watch
	sock  *socket
	asked [2]int // sockets to ask for the old tables of a family; -1 where they are not used

	mu      sync.Mutex
	settled bool // no Set is under way, and counts are those after the last
	sets    string
	tables  string
	told    time.Time // that tables differ

	quit chan struct{}
	done chan struct{}
	once sync.Once
}

// newPulse begins to count for the programs in use, with sockets of the calling thread's
// namespace.
func newPulse(w *watch, programs [2]*iptables) (*pulse, error) {
	p := &pulse{watch: w, asked: [2]int{-1, -1}, quit: make(chan struct{}), done: make(chan struct{})}
	var err error
	if p.sock, err = dial(); err != nil {
		return nil, err
	}
	for f, i := range programs {
		if i == nil || !i.legacy() {
			continue
		}
		domain := [2]int{unix.AF_INET, unix.AF_INET6}[f]
		if p.asked[f], err = unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return nil, errors.Join(fmt.Errorf("socket for tables: %w", err), p.release())
		}
	}
	go p.run()
	return p, nil
}

func (p *pulse) run() {
	defer close(p.done)
	t := time.NewTicker(pulseInterval)
	defer t.Stop()
	for {
		select {
		case <-p.quit:
			return
		case <-t.C:
			p.beat()
		}
	}
}

// beat compares the counts with those after the last Set, and tells once if they
// differ. What cannot be read changes nothing: the next full check will say.
func (p *pulse) beat() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.compare()
}

func (p *pulse) compare() {
	if !p.settled {
		return
	}
	if sets, err := p.countSets(); err == nil && sets != p.sets {
		p.sets = sets
		p.watch.disturb("another program changed sets of ipset")
	}
	if time.Since(p.told) < pulsePause {
		return
	}
	if tables, err := p.countTables(); err == nil && tables != p.tables {
		p.tables, p.told = tables, time.Now()
		p.watch.lost("another program changed tables of iptables-legacy") // FORWARD may be among what has changed
	}
}

// pause says that counts are about to change. What has changed until now is told first: it
// would be taken for a change of our own.
func (p *pulse) pause() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.compare()
	p.settled = false
}

// settle takes the counts of now for those that shall be.
func (p *pulse) settle() {
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

// countSets is the number of entries of each of our sets, and of rules that ask it. How
// many clients are remembered is the kernel's business.
func (p *pulse) countSets() (string, error) {
	var all []string
	err := p.sock.listAllSets(ipsetListHeader, func(data []byte) {
		name := cstring(attribute(data, ipsetAttrName))
		if !strings.HasPrefix(name, setPrefix) {
			return
		}
		header := attribute(data, ipsetAttrData)
		elements := number(attribute(header, ipsetAttrElements))
		if strings.HasPrefix(name, affinityPrefix(0)) || strings.HasPrefix(name, affinityPrefix(1)) {
			elements = 0
		}
		all = append(all, fmt.Sprint(name, " ", cstring(attribute(data, ipsetAttrKind)), " ", elements, " ", number(attribute(header, ipsetAttrReferences))))
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

// countTables is the number of rules of the old tables, their size, and where each hook
// begins.
func (p *pulse) countTables() (string, error) {
	var all []string
	for f, fd := range p.asked {
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

func (p *pulse) release() error {
	err := p.sock.close()
	for _, fd := range p.asked {
		if fd >= 0 {
			err = errors.Join(err, unix.Close(fd))
		}
	}
	return err
}

func (p *pulse) close() (err error) {
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
