package iptables

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	goiptables "github.com/coreos/go-iptables/iptables"

	"github.com/fanfare-lb/fanfare/proxy/state"
)

// Installed returns the programs of iptables that are in PATH. "iptables" without a suffix counts
// only on old systems that have no other name: elsewhere it is a link to one of the others.
func Installed() []Program {
	var all []Program
	for _, i := range Programs {
		if _, err := exec.LookPath(i.Name + "-restore"); err == nil {
			all = append(all, i)
		}
	}
	if len(all) > 0 {
		return all
	}
	for _, i := range []Program{{Name: "iptables", Tables: Programs[1].Tables},
		{Name: "ip6tables", ipv6: true, Tables: Programs[3].Tables}} {
		if _, err := exec.LookPath(i.Name + "-restore"); err == nil {
			all = append(all, i)
		}
	}
	return all
}

// Legacy reports whether the program uses the kernel's interface from before nftables. It sends
// no notifications, and each change replaces a whole table.
func (i Program) Legacy() bool { return i.Tables != "" }

// Family returns 0 for a program of IPv4 and 1 for IPv6, as in [state.Family].
func (i Program) Family() state.SetID {
	if i.ipv6 {
		return 1
	}
	return 0
}

// saveAll returns all tables that exist, as iptables-save shows them. Unlike a request for one
// table, it does not make the kernel create a table.
func (i Program) saveAll(ctx context.Context) (string, error) {
	return i.runFor(ctx, loadPatience, "", "-save")
}

// loadPatience bounds the time of a program that reads or writes all rules: ten thousand VIPs
// are some hundred thousand rules.
const loadPatience = time.Minute

// load applies the input for iptables-restore, each table in one transaction. It keeps what the
// input does not name, and waits up to five seconds for the xtables lock.
func (i Program) load(ctx context.Context, script string) error {
	_, err := i.runFor(ctx, loadPatience, script, "-restore", "--noflush", "-w", strconv.Itoa(loadLockWait))
	return err
}

// loadLockWait is how many seconds a load waits for the xtables lock.
const loadLockWait = 5

// Find chooses the program of each family that supports all rules. It must be called first, but
// VIPs and Remove do not need it. It is an error if neither family has such a program, or if the
// kernel lacks a type of set. If only one family has a program, that is logged, and Lacks returns
// the reason for the other.
func (x *Renderer) Find(ctx context.Context) error {
	if err := x.setsMissing(); err != nil {
		return err
	}
	for f := range state.SetID(2) {
		x.Programs[f], x.missing[f] = x.findFamily(ctx, f)
		if x.missing[f] != nil {
			x.Log.InfoContext(ctx, "no iptables", "family", []string{"IPv4", "IPv6"}[f], "reason", x.missing[f])
			continue
		}
		x.teeErr[f] = nil
		for _, feature := range xtRedirectFeatures(f) {
			x.teeErr[f] = errors.Join(x.teeErr[f], x.Programs[f].tryOne(ctx, feature))
		}
	}
	if x.Programs[0] == nil && x.Programs[1] == nil {
		return errors.Join(x.missing[:]...)
	}
	return nil
}

// findFamily prefers the program that has Fanfare's chains, then the one with chains of kube-proxy
// or the kubelet. Fanfare's rules must come before those, but the order of the two interfaces is
// the kernel's choice: only within one can a rule be first.
func (x *Renderer) findFamily(ctx context.Context, f state.SetID) (*Program, error) {
	programs := Installed()
	traces := make(map[string]int)
	for _, i := range programs {
		traces[i.Name] = i.traces(ctx)
	}
	slices.SortStableFunc(programs, func(a, b Program) int { return traces[b.Name] - traces[a.Name] })
	var errs []error
	for _, i := range programs {
		if i.Family() != f {
			continue
		}
		if err := x.try(ctx, i); err != nil {
			errs = append(errs, err)
			continue
		}
		return &i, nil
	}
	if len(errs) == 0 {
		return nil, errors.New("there is no program iptables-restore")
	}
	return nil, errors.Join(errs...)
}

// chainTraces are chains that tell which program is in use on a node, the strongest first.
var chainTraces = []struct {
	table, chain string
	rank         int
}{
	{"nat", xtArriving, 2},
	{"mangle", "KUBE-IPTABLES-HINT", 1}, // of the kubelet
	{"nat", "KUBE-MARK-MASQ", 1},        // of kube-proxy; unlike KUBE-SERVICES it is short, and read fast
}

// traces returns how likely a program is in use here: 2 for chains of Fanfare, 1 for chains of
// Kubernetes, otherwise 0.
func (i Program) traces(ctx context.Context) (rank int) {
	// what cannot be asked has no rank
	_ = i.byRule(ctx, loadPatience, loadLockWait, func(t *goiptables.IPTables) error {
		for _, c := range chainTraces {
			has, err := i.hasTable(c.table) // otherwise the question may create it
			if has {
				has, err = t.ChainExists(c.table, c.chain)
			}
			if has {
				rank = c.rank
			}
			if has || err != nil {
				return err
			}
		}
		return nil
	})
	return rank
}

// An xtFeature is a rule for a probe, and the kernel option that it needs.
type xtFeature struct {
	table, rule, config string
}

// probeChain is the chain for rules of a probe. No rule leads to it.
const probeChain = "FANFARE-PROBE"

// xtFeatures returns one rule for each match and target that Fanfare's rules use. Addresses are of
// the ranges for documentation (RFC 5737, RFC 3849).
func xtFeatures(f state.SetID) []xtFeature {
	reject := [2]string{"icmp-port-unreachable", "icmp6-port-unreachable"}[f]
	vip := [2]string{"192.0.2.1", "2001:db8::1"}[f]
	return []xtFeature{
		{"filter", "-m conntrack --ctstate INVALID -j DROP", "CONFIG_NETFILTER_XT_MATCH_CONNTRACK"},
		{"filter", "-j REJECT --reject-with " + reject, "CONFIG_IP_NF_TARGET_REJECT"},
		{"filter", "-m set --match-set " + probeSet(f) + " dst -j DROP", "CONFIG_NETFILTER_XT_SET"},
		{"raw", "-j CT --notrack", "CONFIG_NETFILTER_XT_TARGET_CT"},
		{"nat", "-m addrtype --dst-type LOCAL -j RETURN", "CONFIG_NETFILTER_XT_MATCH_ADDRTYPE"},
		{"nat", "-m statistic --mode random --probability 0.5 -j RETURN", "CONFIG_NETFILTER_XT_MATCH_STATISTIC"},
		{"nat", "-m cluster --cluster-total-nodes 2 --cluster-local-node 1 --cluster-hash-seed 1 -j RETURN",
			"CONFIG_NETFILTER_XT_MATCH_CLUSTER"},
		{"nat", sameAddrs(f) + "-j RETURN", "CONFIG_NETFILTER_XT_MATCH_BPF"},
		{"nat", "-m mark --mark 0x4000/0x4000 -j RETURN", "CONFIG_NETFILTER_XT_MARK"},
		{"nat", setMark(defaultFlag), "CONFIG_NETFILTER_XT_MARK"},
		{"nat", "-j SET --add-set " + probeSet(f) + " src --exist", "CONFIG_NETFILTER_XT_SET"},
		{"nat", "-j DNAT --to-destination " + vip, "CONFIG_NETFILTER_XT_NAT"},
		{"nat", "-p tcp -j REDIRECT", "CONFIG_NETFILTER_XT_TARGET_REDIRECT"},
		{"nat", "-j MASQUERADE --random-fully", "CONFIG_NETFILTER_XT_TARGET_MASQUERADE"},
	}
}

// probeSet returns the name of the set for rules of a probe.
func probeSet(f state.SetID) string { return ipsetPrefix + "probe" + string("46"[f]) }

// setsMissing creates and deletes a set of each type, and returns why one cannot be created.
func (x *Renderer) setsMissing() error {
	for m := range ipsetCount {
		for f := range state.SetID(2) {
			if err := createSet(x.Sock, probeSet(f), staticForm(m, f)); err != nil {
				return fmt.Errorf("iptables mode needs sets (CONFIG_IP_SET and its %s): %w", setShapes[m].kind, err)
			}
			if err := destroySet(x.Sock, probeSet(f)); err != nil {
				return err
			}
		}
	}
	return nil
}

// try loads one rule of each kind into chains that no packet reaches. Only if all together fail
// does it try them one by one, for the error: each takes a process.
func (x *Renderer) try(ctx context.Context, i Program) (err error) {
	f := i.Family()
	if err := createSet(x.Sock, probeSet(f),
		setForm{kind: affinityKind, family: f, timeout: time.Second, most: maxClients, evicts: true}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, destroySet(x.Sock, probeSet(f))) }()
	if err = i.loadOnce(ctx, xtFeatures(f)); err == nil {
		return nil
	}
	return fmt.Errorf("%w (%w)", i.lacks(ctx, f), err)
}

// loadOnce loads rules into chains that no packet reaches, and deletes them: two transactions for each
// table.
func (i Program) loadOnce(ctx context.Context, features []xtFeature) error {
	have, want := make(map[string]chainSet), make(map[string]chainSet)
	for _, feature := range features {
		if want[feature.table] == nil {
			have[feature.table], want[feature.table] = make(chainSet), make(chainSet)
		}
		want[feature.table].add(probeChain, feature.rule)
	}
	script, _ := planTables(have, want).script()
	undo, _ := planTables(want, have).script()
	if err := i.load(ctx, script); err != nil {
		return err
	}
	return i.load(ctx, undo)
}

// tryOne loads and deletes one rule.
func (i Program) tryOne(ctx context.Context, feature xtFeature) error {
	if err := i.loadOnce(ctx, []xtFeature{feature}); err != nil {
		return fmt.Errorf("%s or this kernel lacks %s: %w", i.Name, feature.config, err)
	}
	return nil
}

// lacks tries each kind of rule alone, and returns an error with the kernel options of the rules
// that fail. It always returns an error.
func (i Program) lacks(ctx context.Context, f state.SetID) error {
	var missing []string
	for _, feature := range xtFeatures(f) {
		if i.tryOne(ctx, feature) != nil {
			missing = append(missing, fmt.Sprintf("%s (%s)", feature.config, feature.rule))
		}
	}
	version, err := i.run(ctx, "", "", "--version") // such as iptables v1.8.9 (nf_tables)
	if err != nil {
		return err
	}
	if len(missing) == 0 {
		return fmt.Errorf("%s does not take the rules together", i.Name)
	}
	return fmt.Errorf("%s (%s) or this kernel lacks %s", i.Name, strings.TrimSpace(version),
		strings.Join(missing, ", "))
}

// RuleWords splits a rule into arguments as iptables-restore does: text in double quotes is one
// argument, and a backslash in it takes the next character as it is.
func RuleWords(rule string) (words []string) {
	var word []byte
	quoted, begun := false, false
	for n := 0; n < len(rule); n++ {
		switch c := rule[n]; {
		case c == '"':
			quoted, begun = !quoted, true
		case quoted && c == '\\' && n+1 < len(rule):
			n++
			word = append(word, rule[n])
		case quoted || c != ' ':
			word, begun = append(word, c), true
		case begun:
			words, word, begun = append(words, string(word)), word[:0], false
		}
	}
	if begun {
		words = append(words, string(word))
	}
	return words
}

// Names returns the names of the programs in use, for the status and the log.
func (x *Renderer) Names() (names []string) {
	for _, i := range x.Programs {
		if i != nil {
			names = append(names, i.Name)
		}
	}
	return names
}

// unsupportedBy returns one sentence for each frontend that iptables cannot serve as the State
// demands, with what it does instead.
func unsupportedBy(s state.State) (all []string) {
	for v := range s.VIPs.All() {
		for i := range v.Frontends {
			fe := &v.Frontends[i]
			for _, target := range []*state.Target{&fe.External, &fe.Internal} {
				if fe.XtScheduler(target) != fe.Scheduler {
					all = append(all, fmt.Sprintf("%s: with iptables Maglev has room for %d backends; these %d "+
						"are chosen at random",
						strings.TrimSpace(fe.Label(v)+" "+fe.Name), state.MaxTabled, len(target.Backends)))
					break
				}
			}
		}
	}
	return all
}
