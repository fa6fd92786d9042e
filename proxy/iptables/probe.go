package iptables

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"time"

	goiptables "github.com/coreos/go-iptables/iptables"

	"github.com/fanfare-lb/fanfare/proxy/state"
)

// Installed are the iptables that may have rules here. Old systems have iptables under
// no other name; where there are other names, that is one of them.
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
	for _, i := range []Program{{Name: "iptables", Tables: Programs[1].Tables}, {Name: "ip6tables", ipv6: true, Tables: Programs[3].Tables}} {
		if _, err := exec.LookPath(i.Name + "-restore"); err == nil {
			all = append(all, i)
		}
	}
	return all
}

// Legacy says whether the rules are in the kernel's old interface.
func (i Program) Legacy() bool { return i.Tables != "" }

func (i Program) Family() state.SetID {
	if i.ipv6 {
		return 1
	}
	return 0
}

// SaveAll is all tables that there are as text. Unlike to ask for one, that makes
// none.
func (i Program) SaveAll(ctx context.Context) (string, error) {
	return i.runFor(ctx, loadPatience, "", "-save")
}

// loadPatience bounds what iptables-restore may take: ten thousand VIPs are some
// hundred thousand rules.
const loadPatience = time.Minute

// Load is restore for rules that may be many.
func (i Program) Load(ctx context.Context, script string) error {
	_, err := i.runFor(ctx, loadPatience, script, "-restore", "--noflush", "-w", "5")
	return err
}

// Find chooses the iptables of each family. At least one must have one.
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
		x.teeErr[f] = x.Programs[f].tryOne(ctx, xtTee(f))
	}
	if x.Programs[0] == nil && x.Programs[1] == nil {
		return errors.Join(x.missing[:]...)
	}
	return nil
}

// findFamily prefers the iptables that has our chains, then that of kube-proxy or
// the kubelet, so as to come before them: between two of them the kernel decides.
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

// traces is higher the more points to the use of an iptables.
func (i Program) traces(ctx context.Context) int {
	save, err := i.SaveAll(ctx)
	switch {
	case err != nil:
		return 0
	case strings.Contains(save, ":"+xtArriving):
		return 2
	case strings.Contains(save, ":KUBE-"):
		return 1
	}
	return 0
}

// An xtFeature is a rule whose match or target is a part of the kernel of its own.
type xtFeature struct {
	table, rule, config string
}

const ProbeChain = "FANFARE-PROBE"

// xtFeatures are what the rules need.
func xtFeatures(f state.SetID) []xtFeature {
	reject := [2]string{"icmp-port-unreachable", "icmp6-port-unreachable"}[f]
	vip := [2]string{"192.0.2.1", "2001:db8::1"}[f]
	return []xtFeature{
		{"filter", "-m conntrack --ctstate INVALID -j DROP", "CONFIG_NETFILTER_XT_MATCH_CONNTRACK"},
		{"filter", "-j REJECT --reject-with " + reject, "CONFIG_IP_NF_TARGET_REJECT"},
		{"filter", "-m set --match-set " + ProbeSet(f) + " dst -j DROP", "CONFIG_NETFILTER_XT_SET"},
		{"raw", "-j CT --notrack", "CONFIG_NETFILTER_XT_TARGET_CT"},
		{"nat", "-m addrtype --dst-type LOCAL -j RETURN", "CONFIG_NETFILTER_XT_MATCH_ADDRTYPE"},
		{"nat", "-m statistic --mode random --probability 0.5 -j RETURN", "CONFIG_NETFILTER_XT_MATCH_STATISTIC"},
		{"nat", "-m cluster --cluster-total-nodes 2 --cluster-local-node 1 --cluster-hash-seed 1 -j RETURN", "CONFIG_NETFILTER_XT_MATCH_CLUSTER"},
		{"nat", `-m bpf --bytecode "` + sameAddrs(f) + `" -j RETURN`, "CONFIG_NETFILTER_XT_MATCH_BPF"},
		{"nat", "-m mark --mark 0x4000/0x4000 -j RETURN", "CONFIG_NETFILTER_XT_MARK"},
		{"nat", setMark(DefaultFlag), "CONFIG_NETFILTER_XT_MARK"},
		{"nat", "-j SET --add-set " + ProbeSet(f) + " src --exist", "CONFIG_NETFILTER_XT_SET"},
		{"nat", "-j DNAT --to-destination " + vip, "CONFIG_NETFILTER_XT_NAT"},
		{"nat", echo(f), "CONFIG_NETFILTER_XT_TARGET_REDIRECT"},
		{"nat", "-j MASQUERADE --random-fully", "CONFIG_NETFILTER_XT_TARGET_MASQUERADE"},
	}
}

func ProbeSet(f state.SetID) string { return SetPrefix + "probe" + string("46"[f]) }

// setsMissing says why there are no sets here.
func (x *Renderer) setsMissing() error {
	for m := range IPSetCount {
		for f := range state.SetID(2) {
			if err := CreateSet(x.Sock, ProbeSet(f), StaticForm(m, f)); err != nil {
				return fmt.Errorf("iptables mode needs sets (CONFIG_IP_SET and its %s): %w", SetShapes[m].Kind, err)
			}
			if err := DestroySet(x.Sock, ProbeSet(f)); err != nil {
				return err
			}
		}
	}
	return nil
}

// try has the kernel take one rule of each kind, in chains that no packet meets. One
// by one only if all at once fail: each is a process.
func (x *Renderer) try(ctx context.Context, i Program) (err error) {
	f := i.Family()
	if err := CreateSet(x.Sock, ProbeSet(f), SetForm{affinityKind, f, time.Second}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, DestroySet(x.Sock, ProbeSet(f))) }()
	have, want := make(map[string]ChainSet), make(map[string]ChainSet)
	for _, feature := range xtFeatures(f) {
		if want[feature.table] == nil {
			have[feature.table], want[feature.table] = make(ChainSet), make(ChainSet)
		}
		want[feature.table].Add(ProbeChain, feature.rule)
	}
	script, _ := PlanTables(have, want).Script()
	undo, _ := PlanTables(want, have).Script()
	if err = i.Load(ctx, script); err == nil {
		return i.Load(ctx, undo)
	}
	return fmt.Errorf("%w (%w)", i.Lacks(f), err)
}

// tryOne has the kernel take one rule, in a chain that no packet meets.
func (i Program) tryOne(ctx context.Context, feature xtFeature) error {
	have, want := map[string]ChainSet{feature.table: {}}, map[string]ChainSet{feature.table: {}}
	want[feature.table].Add(ProbeChain, feature.rule)
	script, _ := PlanTables(have, want).Script()
	undo, _ := PlanTables(want, have).Script()
	if err := i.Load(ctx, script); err != nil {
		return fmt.Errorf("%s or this kernel lacks %s: %w", i.Name, feature.config, err)
	}
	return i.Load(ctx, undo)
}

// Lacks names what an iptables does not take.
func (i Program) Lacks(f state.SetID) error {
	protocol := goiptables.ProtocolIPv4
	if i.ipv6 {
		protocol = goiptables.ProtocolIPv6
	}
	t, err := goiptables.New(goiptables.IPFamily(protocol), goiptables.Path(i.Name), goiptables.Timeout(5))
	if err != nil {
		return err
	}
	var missing []string
	for _, feature := range xtFeatures(f) {
		err := t.ClearChain(feature.table, ProbeChain)
		if err == nil {
			err = t.Append(feature.table, ProbeChain, RuleWords(feature.rule)...)
		}
		if err != nil {
			missing = append(missing, fmt.Sprintf("%s (%s)", feature.config, feature.rule))
		}
		_ = t.ClearAndDeleteChain(feature.table, ProbeChain) // the table itself may be what is missing
	}
	if len(missing) == 0 {
		return fmt.Errorf("%s does not take the rules together", i.Name)
	}
	v1, v2, v3 := t.GetIptablesVersion()
	return fmt.Errorf("%s %d.%d.%d or this kernel lacks %s", i.Name, v1, v2, v3, strings.Join(missing, ", "))
}

// RuleWords splits a rule as iptables-restore does.
func RuleWords(rule string) (words []string) {
	for i, part := range strings.Split(rule, `"`) {
		if i%2 == 1 {
			words = append(words, part)
		} else {
			words = append(words, strings.Fields(part)...)
		}
	}
	return words
}

// Names are those of the programs in use.
func (x *Renderer) Names() (names []string) {
	for _, i := range x.Programs {
		if i != nil {
			names = append(names, i.Name)
		}
	}
	return names
}

// Unsupported says what of a State iptables can not do, and what it does instead.
func Unsupported(s state.State) (all []string) {
	for _, v := range s.VIPs {
		for i := range v.Frontends {
			fe := &v.Frontends[i]
			for _, target := range []*state.Target{&fe.External, &fe.Internal} {
				if fe.XtScheduler(target) != fe.Scheduler {
					all = append(all, fmt.Sprintf("%s: with iptables Maglev has room for %d backends; these %d are chosen at random",
						strings.TrimSpace(fe.Label(v)+" "+fe.Name), state.MaxTabled, len(target.Backends)))
					break
				}
			}
		}
	}
	return all
}
