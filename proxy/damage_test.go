package proxy

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/internal/kernel/nfnl"
	"github.com/fanfare-lb/fanfare/internal/testing/proxytest"
	"github.com/fanfare-lb/fanfare/proxy/iptables"
	"github.com/fanfare-lb/fanfare/proxy/renderer"
)

// A damage is a change of our rules by another program.
type damage struct {
	name   string
	script string // of nft, where HANDLE is that of the first rule of a chain
	chain  string
	found  string // how Status reports it
}

// rulesFound is what Status reports for all changes but those of elements.
const rulesFound = "chains, rules or sets changed"

// numbersFound is what Status reports for the maps of numbers.
const numbersFound = "what numbers stand for changed"

// damages of a packetState with clients behind cali.
var damages = []damage{
	{"everything is flushed", "flush ruleset", "", "table missing"},
	{"the table is deleted", "delete table inet fanfare", "", "table missing"},
	{"the table sleeps", "add table inet fanfare { flags dormant; }", "", rulesFound},
	{"the rules are flushed", "flush table inet fanfare", "", rulesFound},
	{"the schema is deleted", "delete chain inet fanfare SCHEMA", "", "schema unknown"},

	{"a chain is flushed", "flush chain inet fanfare filter-prerouting", "", rulesFound},
	{"a made chain is flushed", "flush chain inet fanfare x1", "", rulesFound},
	{"a rule is deleted", "delete rule inet fanfare nat-prerouting handle HANDLE", "nat-prerouting", rulesFound},
	{"a rule is replaced", "replace rule inet fanfare filter-output handle HANDLE accept", "filter-output", rulesFound},
	{"a rule is added", "add rule inet fanfare nat-prerouting accept", "", rulesFound},
	{"a rule comes first", "insert rule inet fanfare unasked accept", "", rulesFound},
	{"a chain is added", "add chain inet fanfare mine", "", rulesFound},
	{"a chain comes before ours", "add chain inet fanfare mine { type nat hook prerouting priority -102; }; add rule " +
		"inet fanfare mine accept", "", rulesFound},
	{"a policy is changed", "add chain inet fanfare filter-prerouting { policy drop; }", "", rulesFound},

	{"an element is deleted", "delete element inet fanfare xsvc4 { 192.0.2.1 . tcp . 80 }", "",
		"1 elements missing or changed, such as xsvc4 { 192.0.2.1 . tcp . 80 : 10:1 }"},
	{"an element is added", "add element inet fanfare vips4 { 192.0.2.33 }", "",
		"1 unknown or changed elements, such as vips4 { 192.0.2.33 }"},
	{"an interval is deleted", "delete element inet fanfare owned6 { 2001:db8::/64 }", "",
		"1 elements missing or changed, such as owned6 { 2001:db8::/64 }"},
	{"a backend is changed", "delete element inet fanfare xeps4 { 192.0.2.1 . tcp . 80 . 0 }; " +
		"add element inet fanfare xeps4 { 192.0.2.1 . tcp . 80 . 0 : 10.244.1.12 . 8080 }", "",
		"1 elements missing or changed, such as xeps4 { 192.0.2.1 . tcp . 80 . 0 : 10.244.1.11 . 8080 }"},
	{"a number is changed", "delete element inet fanfare xsvc4 { 192.0.2.1 . tcp . 80 }; " +
		"add element inet fanfare xsvc4 { 192.0.2.1 . tcp . 80 : 1:1 }", "",
		"1 elements missing or changed, such as xsvc4 { 192.0.2.1 . tcp . 80 : 10:1 }"},
	{"a verdict is changed", "delete element inet fanfare isvcto { 20:1 }; add element inet fanfare isvcto { " +
		"20:1 : goto refuse }", "", numbersFound},
	{"a verdict of another program", "delete element inet fanfare xsvcto { 10:1 }; add element inet fanfare " +
		"xsvcto { 10:1 : jump x1 }", "", numbersFound},
	{"a number leads nowhere", "delete element inet fanfare xsvcto { 10:1 }", "", numbersFound},
	{"a number of another program", "delete element inet fanfare xsvc4 { 192.0.2.1 . tcp . 80 }; " +
		"add element inet fanfare xsvc4 { 192.0.2.1 . tcp . 80 : 77:1 }", "",
		"1 elements missing or changed, such as xsvc4 { 192.0.2.1 . tcp . 80 : 10:1 }"},
	{"a verdict for all", "add element inet fanfare xsvcto { * : drop }", "", "an element for all keys in xsvcto"},
	{"a number for all", "add element inet fanfare xsvc4 { * : 1:1 }", "", "an element for all keys in xsvc4"},
	{"a map is flushed", "flush map inet fanfare xeps4", "", "elements missing or changed"},

	{"a set is added", "add set inet fanfare mine { type ipv4_addr; }", "", rulesFound},
	{"a map is added", "add map inet fanfare mine { type ipv4_addr : verdict; flags interval; }", "", rulesFound},
	{"a set is deleted", "delete set inet fanfare drain4", "", "sets missing: drain4"},
	// Only of a set that no rule asks the kernel lets others be made.
	{"a set is another", "delete set inet fanfare drain4; add set inet fanfare drain4 " +
		"{ type ipv4_addr . inet_proto . inet_service . ipv4_addr . inet_service; flags timeout; timeout 1h; }", "",
		rulesFound},
	{"a set has other keys", "delete set inet fanfare drain4; add set inet fanfare drain4 { type ipv4_addr; }", "",
		rulesFound},
	{"a set is a map", "delete set inet fanfare drain4; add map inet fanfare drain4 " +
		"{ type ipv4_addr . inet_proto . inet_service . ipv4_addr . inet_service : verdict; }", "", rulesFound},
}

// text is the script for the table as it is now.
func (d damage) text(t *testing.T) string {
	t.Helper()
	script := strings.ReplaceAll(d.script, "SCHEMA", proxytest.Schema(t))
	if d.chain == "" {
		return script
	}
	out, err := exec.Command("nft", "-a", "list", "chain", "inet", renderer.TableName, d.chain).CombinedOutput()
	// The first handle is the chain's own.
	handles := regexp.MustCompile(`# handle (\d+)`).FindAllStringSubmatch(string(out), 2)
	if err != nil || len(handles) < 2 {
		t.Fatalf("chain %s: %v\n%s", d.chain, err, out)
	}
	return strings.ReplaceAll(script, "HANDLE", handles[1][1])
}

// Each change of the table by another program is noticed at once and repaired, and Status says
// what it was.
func TestRepair(t *testing.T) {
	proxytest.InNamespace(t, func(t *testing.T) {
		l := newLab(t)
		p := newProxy(t)
		s := proxytest.PacketState(LocalClients{InterfacePrefix: "cali"})
		mustSet(t, p, s)
		for _, d := range damages {
			script := d.text(t)
			before := p.Status().Repairs
			start := time.Now()
			proxytest.NFT(t, script)
			done := time.Now()
			awaitDamage(t, p, d.name)
			checkDiffers(t, p, s, d.name, d.found)
			mustSet(t, p, s)
			t.Logf("%s: repaired %v after nft began, %v after it ended", d.name,
				time.Since(start).Round(time.Millisecond), time.Since(done).Round(time.Millisecond))
			l.checkRepaired(t, p, s, before, d.name, d.found)
		}
		extra := netip.MustParseAddr("192.0.2.33")
		if flows := l.flows(extra); len(flows) > 0 {
			t.Errorf("flows %v", flows)
		}
	})
}

// A stumbler is a renderer whose first attempts mend what they find, and fail after that.
type stumbler struct {
	renderer.Renderer
	errs []error
}

func (r *stumbler) Converge(ctx context.Context, have *State, want State) (renderer.Finding, error) {
	out, err := r.Renderer.Converge(ctx, have, want)
	if err == nil && len(r.errs) > 0 {
		err, r.errs = r.errs[0], r.errs[1:]
	}
	return out, err
}

// A repair counts once, with what was found first, however many attempts it takes, and
// if it takes another Set.
func TestRepairInSeveralAttempts(t *testing.T) {
	onEach(t, func(t *testing.T) {
		p := newProxy(t)
		s := proxytest.PacketState(LocalClients{InterfacePrefix: "cali"})
		mustSet(t, p, s)
		for _, errs := range [][]error{{nfnl.ErrUnanswered}, {nfnl.ErrUnanswered, iptables.ErrRefused},
			{os.ErrDeadlineExceeded}, {nfnl.ErrUnanswered, os.ErrDeadlineExceeded}} {
			before := p.Status().Repairs
			var found string
			if testMode == ModeNFTables {
				d := damages[slices.IndexFunc(damages, func(d damage) bool { return d.name == "an element is added" })]
				proxytest.NFT(t, d.script)
				found = d.found
			} else {
				d := xtDamages[slices.IndexFunc(xtDamages,
					func(d xtDamage) bool { return d.name == "an entry is added" })]
				d.do(t, p.Status().Programs[0])
				found = d.found
			}
			real := p.rules.renderer
			p.rules.renderer = &stumbler{real, errs}
			p.Recheck()
			err := p.Set(t.Context(), s)
			if fails := errors.Is(errs[len(errs)-1], os.ErrDeadlineExceeded); fails != (err != nil) {
				t.Errorf("%v: Set says %v", errs, err)
			} else if got := p.Status().Repairs; fails && got != before {
				t.Errorf("%v: %d repairs by a Set that failed", errs, got-before)
			}
			p.rules.renderer = real
			mustSet(t, p, s)
			checkKernel(t, s)
			if got := p.Status(); got.Repairs != before+1 || !strings.HasSuffix(got.Found, found) {
				t.Errorf("%v: %d repairs, found %q; want one and %q", errs, got.Repairs-before, got.Found, found)
			}
		}
	})
}

func awaitChanged(t *testing.T, p *Proxy, what string) {
	t.Helper()
	select {
	case <-p.Changed():
	case <-time.After(20 * time.Second):
		t.Fatalf("%s: not noticed", what)
	}
}

// awaitDamage waits until a change of our rules is signalled. Other changes are
// signalled in the same way.
func awaitDamage(t *testing.T, p *Proxy, what string) {
	t.Helper()
	for told := false; !told; told = p.watch.dirty.Load() {
		awaitChanged(t, p, what)
	}
}

// checkDiffers compares the kernel with a State that it held before it was damaged.
func checkDiffers(t *testing.T, p *Proxy, s State, name, found string) {
	t.Helper()
	if got, err := p.rules.renderer.Differs(t.Context(), s); err != nil || !strings.Contains(got, found) {
		t.Errorf("%s: compared: %q, %v; want %q", name, got, err, found)
	}
}

// checkRepaired looks at what a Set did about damage.
func (l *lab) checkRepaired(t *testing.T, p *Proxy, s State, before uint64, name, found string) {
	t.Helper()
	checkKernel(t, s)
	got := p.Status()
	if got.Repairs != before+1 || !strings.Contains(got.Found, found) {
		t.Errorf("%s: %d repairs, found %q; want one and %q", name, got.Repairs-before, got.Found, found)
	}
	if got := l.Probe(l.Client, "tcp", netip.AddrPortFrom(proxytest.At("vip", 0), proxytest.PortLocal),
		""); got != "pod1 saw client" {
		t.Errorf("%s: afterwards: %s", name, got)
	}
}

// An xtDamage is a change of chains or sets by another program.
type xtDamage struct {
	name    string
	command string // of iptables
	sets    string // commands of ipset
	then    string // another command
	found   string
}

// noLimits takes away what asks the set fanfare-limited4.
const noLimits = "-t filter -F FANFARE-SOURCES"

// xtDamages of a packetState with clients behind cali.
var xtDamages = []xtDamage{
	{"a jump is deleted", "-t nat -D PREROUTING 1", "", "", "table nat does not lead to our chains first"},
	{"another rule comes first", "-t nat -I PREROUTING 1 -d 192.0.2.1 -j ACCEPT", "", "",
		"table nat does not lead to our chains first"},
	{"a rule is deleted", "-t nat -D FAN-x-t81-192.0.2.1 1", "", "",
		"1 chains missing or changed, such as FAN-x-t81-192.0.2.1"},
	{"a rule is replaced", "-t raw -R FANFARE-UNASSIGNED 1 -j RETURN", "", "",
		"table raw: 1 chains missing or changed, such as FANFARE-UNASSIGNED"},
	{"a rule is added", "-t filter -A FANFARE-REFUSE -j ACCEPT", "", "",
		"1 chains missing or changed, such as FANFARE-REFUSE"},
	{"a rule comes first", "-t nat -I FANFARE-ARRIVING 1 -j RETURN", "", "",
		"1 chains missing or changed, such as FANFARE-ARRIVING"},
	{"a chain is flushed", "-t filter -F FANFARE-UNSERVED", "", "",
		"1 chains missing or changed, such as FANFARE-UNSERVED"},
	{"a chain is added", "-t nat -N FAN-mine", "", "", "1 unknown chains, such as FAN-mine"},
	{"a table is flushed", "-t nat -F", "", "", "chains missing or changed"},

	{"a set is flushed", "", "flush fanfare-vips4", "", "1 entries missing, such as fanfare-vips4 192.0.2.1"},
	{"an entry is deleted", "", "del fanfare-xreject4 192.0.2.1,tcp:83", "",
		"1 entries missing, such as fanfare-xreject4 192.0.2.1,tcp:83"},
	{"an entry is added", "", "add fanfare-vips4 192.0.2.33", "",
		"1 unknown entries, such as fanfare-vips4 192.0.2.33"},
	{"an entry says the contrary", "", "add fanfare-owned4 192.0.2.0/24 nomatch", "",
		"1 entries missing, such as fanfare-owned4 192.0.2.0/24"},
	{"a set has another's entries", "", "create fanfare-spare hash:ip; add fanfare-spare 192.0.2.33; swap " +
		"fanfare-vips4 fanfare-spare; destroy fanfare-spare",
		"", "1 entries missing, such as fanfare-vips4 192.0.2.1"},
	{"a set is another", "", "create fanfare-spare hash:ip timeout 1h; swap fanfare-vips4 fanfare-spare; " +
		"destroy fanfare-spare",
		"", "sets of another form: fanfare-vips4"},
	{"a set is destroyed", noLimits, "destroy fanfare-limited4", "", "table filter"},
	{"a set is of another type", noLimits, "destroy fanfare-limited4; create fanfare-limited4 hash:ip", "",
		"sets of another form: fanfare-limited4"},
	{"a set that rules ask is of another type", noLimits, "destroy fanfare-limited4; create fanfare-limited4 hash:net",
		"-t filter -A FANFARE-SOURCES -m set --match-set fanfare-limited4 dst -j DROP",
		"sets of another form: fanfare-limited4"},
}

func (d xtDamage) do(t *testing.T, program string) {
	t.Helper()
	if d.command != "" {
		iptablesRun(t, program+" "+d.command)
	}
	for command := range strings.SplitSeq(d.sets, "; ") {
		if command != "" {
			proxytest.IPSet(t, command)
		}
	}
	if d.then != "" {
		iptablesRun(t, program+" "+d.then)
	}
}

// Each change of the chains, the jumps to them and the sets is found and repaired, and
// Status says what it was. Changes of iptables-nft are notified; changes of
// iptables-legacy and of sets are found by the next full check.
func TestRepairOfIPTables(t *testing.T) {
	onIPTables(t, func(t *testing.T) {
		l := newLab(t)
		p := newProxy(t)
		s := proxytest.PacketState(LocalClients{InterfacePrefix: "cali"})
		mustSet(t, p, s)
		program := p.Status().Programs[0]
		for _, d := range xtDamages {
			before := p.Status().Repairs
			d.do(t, program)
			start := time.Now()
			if program == "iptables-nft" && d.command != "" {
				awaitDamage(t, p, d.name)
			} else {
				p.Recheck()
			}
			checkDiffers(t, p, s, d.name, d.found)
			mustSet(t, p, s)
			t.Logf("%s: repaired in %v", d.name, time.Since(start).Round(time.Millisecond))
			l.checkRepaired(t, p, s, before, d.name, d.found)
		}
		// Nothing of that was our own.
		p.Recheck()
		before := p.Status()
		mustSet(t, p, s)
		if got := p.Status(); got.Repairs != before.Repairs || got.Generation != before.Generation {
			t.Errorf("a check repaired %q", got.Found)
		}
	})
}

// Changes without a notification are noticed where they can be counted.
func TestSilentDamageIsNoticed(t *testing.T) {
	onIPTables(t, func(t *testing.T) {
		l := newLab(t)
		p := newProxy(t)
		s := proxytest.PacketState(LocalClients{InterfacePrefix: "cali"})
		mustSet(t, p, s)
		program := p.Status().Programs[0]
		silent := []string{"a set is flushed", "an entry is deleted", "an entry is added"}
		if program == "iptables-legacy" {
			silent = append(silent, "a table is flushed")
		}
		for _, d := range xtDamages {
			if !slices.Contains(silent, d.name) {
				continue
			}
			before := p.Status().Repairs
			d.do(t, program)
			start := time.Now()
			awaitDamage(t, p, d.name)
			t.Logf("%s: noticed after %v", d.name, time.Since(start).Round(time.Millisecond))
			mustSet(t, p, s)
			l.checkRepaired(t, p, s, before, d.name, d.found)
		}
		// Neither what we do nor clients that come back are news.
		mustSet(t, p, affinityState(podBackends("pod1"), podBackends("pod1")))
		l.who(l.Client, "udp", 0, netip.AddrPortFrom(proxytest.At("vip", 0), 80))
		p.watch.take()
		p.poller.Poll()
		if p.watch.take() {
			t.Error("disturbed without a change")
		}
	})
}
