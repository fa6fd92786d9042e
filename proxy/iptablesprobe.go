package proxy

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

// xtPrograms are the iptables that may have rules here. Old systems have iptables under
// no other name; where there are other names, that is one of them.
func xtPrograms() []iptables {
	var all []iptables
	for _, i := range allIPTables {
		if _, err := exec.LookPath(i.name + "-restore"); err == nil {
			all = append(all, i)
		}
	}
	if len(all) > 0 {
		return all
	}
	for _, i := range []iptables{{name: "iptables", tables: allIPTables[1].tables}, {name: "ip6tables", ipv6: true, tables: allIPTables[3].tables}} {
		if _, err := exec.LookPath(i.name + "-restore"); err == nil {
			all = append(all, i)
		}
	}
	return all
}

// legacy says whether the rules are in the kernel's old interface.
func (i iptables) legacy() bool { return i.tables != "" }

func (i iptables) family() state.SetID {
	if i.ipv6 {
		return 1
	}
	return 0
}

// saveAll is all tables that there are as text. Unlike to ask for one, that makes
// none.
func (i iptables) saveAll(ctx context.Context) (string, error) {
	return i.runFor(ctx, loadPatience, "", "-save")
}

// loadPatience bounds what iptables-restore may take: ten thousand VIPs are some
// hundred thousand rules.
const loadPatience = time.Minute

// load is restore for rules that may be many.
func (i iptables) load(ctx context.Context, script string) error {
	_, err := i.runFor(ctx, loadPatience, script, "-restore", "--noflush", "-w", "5")
	return err
}

// find chooses the iptables of each family. At least one must have one.
func (x *xtRenderer) find(ctx context.Context) error {
	if err := x.setsMissing(); err != nil {
		return err
	}
	for f := range state.SetID(2) {
		x.programs[f], x.missing[f] = x.findFamily(ctx, f)
		if x.missing[f] != nil {
			x.Log.InfoContext(ctx, "no iptables", "family", []string{"IPv4", "IPv6"}[f], "reason", x.missing[f])
			continue
		}
		x.teeErr[f] = x.programs[f].tryOne(ctx, xtTee(f))
	}
	if x.programs[0] == nil && x.programs[1] == nil {
		return errors.Join(x.missing[:]...)
	}
	return nil
}

// findFamily prefers the iptables that has our chains, then that of kube-proxy or
// the kubelet, so as to come before them: between two of them the kernel decides.
func (x *xtRenderer) findFamily(ctx context.Context, f state.SetID) (*iptables, error) {
	programs := xtPrograms()
	traces := make(map[string]int)
	for _, i := range programs {
		traces[i.name] = i.traces(ctx)
	}
	slices.SortStableFunc(programs, func(a, b iptables) int { return traces[b.name] - traces[a.name] })
	var errs []error
	for _, i := range programs {
		if i.family() != f {
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
func (i iptables) traces(ctx context.Context) int {
	save, err := i.saveAll(ctx)
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

const probeChain = "FANFARE-PROBE"

// xtFeatures are what the rules need.
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
		{"nat", "-m cluster --cluster-total-nodes 2 --cluster-local-node 1 --cluster-hash-seed 1 -j RETURN", "CONFIG_NETFILTER_XT_MATCH_CLUSTER"},
		{"nat", `-m bpf --bytecode "` + sameAddrs(f) + `" -j RETURN`, "CONFIG_NETFILTER_XT_MATCH_BPF"},
		{"nat", "-m mark --mark 0x4000/0x4000 -j RETURN", "CONFIG_NETFILTER_XT_MARK"},
		{"nat", setMark(defaultFlag), "CONFIG_NETFILTER_XT_MARK"},
		{"nat", "-j SET --add-set " + probeSet(f) + " src --exist", "CONFIG_NETFILTER_XT_SET"},
		{"nat", "-j DNAT --to-destination " + vip, "CONFIG_NETFILTER_XT_NAT"},
		{"nat", echo(f), "CONFIG_NETFILTER_XT_TARGET_REDIRECT"},
		{"nat", "-j MASQUERADE --random-fully", "CONFIG_NETFILTER_XT_TARGET_MASQUERADE"},
	}
}

func probeSet(f state.SetID) string { return setPrefix + "probe" + string("46"[f]) }

// setsMissing says why there are no sets here.
func (x *xtRenderer) setsMissing() error {
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

// try has the kernel take one rule of each kind, in chains that no packet meets. One
// by one only if all at once fail: each is a process.
func (x *xtRenderer) try(ctx context.Context, i iptables) (err error) {
	f := i.family()
	if err := createSet(x.Sock, probeSet(f), setForm{affinityKind, f, time.Second}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, destroySet(x.Sock, probeSet(f))) }()
	have, want := make(map[string]chainSet), make(map[string]chainSet)
	for _, feature := range xtFeatures(f) {
		if want[feature.table] == nil {
			have[feature.table], want[feature.table] = make(chainSet), make(chainSet)
		}
		want[feature.table].add(probeChain, feature.rule)
	}
	script, _ := planTables(have, want).script()
	undo, _ := planTables(want, have).script()
	if err = i.load(ctx, script); err == nil {
		return i.load(ctx, undo)
	}
	return fmt.Errorf("%w (%w)", i.lacks(f), err)
}

// tryOne has the kernel take one rule, in a chain that no packet meets.
func (i iptables) tryOne(ctx context.Context, feature xtFeature) error {
	have, want := map[string]chainSet{feature.table: {}}, map[string]chainSet{feature.table: {}}
	want[feature.table].add(probeChain, feature.rule)
	script, _ := planTables(have, want).script()
	undo, _ := planTables(want, have).script()
	if err := i.load(ctx, script); err != nil {
		return fmt.Errorf("%s or this kernel lacks %s: %w", i.name, feature.config, err)
	}
	return i.load(ctx, undo)
}

// lacks names what an iptables does not take.
func (i iptables) lacks(f state.SetID) error {
	protocol := goiptables.ProtocolIPv4
	if i.ipv6 {
		protocol = goiptables.ProtocolIPv6
	}
	t, err := goiptables.New(goiptables.IPFamily(protocol), goiptables.Path(i.name), goiptables.Timeout(5))
	if err != nil {
		return err
	}
	var missing []string
	for _, feature := range xtFeatures(f) {
		err := t.ClearChain(feature.table, probeChain)
		if err == nil {
			err = t.Append(feature.table, probeChain, ruleWords(feature.rule)...)
		}
		if err != nil {
			missing = append(missing, fmt.Sprintf("%s (%s)", feature.config, feature.rule))
		}
		_ = t.ClearAndDeleteChain(feature.table, probeChain) // the table itself may be what is missing
	}
	if len(missing) == 0 {
		return fmt.Errorf("%s does not take the rules together", i.name)
	}
	v1, v2, v3 := t.GetIptablesVersion()
	return fmt.Errorf("%s %d.%d.%d or this kernel lacks %s", i.name, v1, v2, v3, strings.Join(missing, ", "))
}

// ruleWords splits a rule as iptables-restore does.
func ruleWords(rule string) (words []string) {
	for i, part := range strings.Split(rule, `"`) {
		if i%2 == 1 {
			words = append(words, part)
		} else {
			words = append(words, strings.Fields(part)...)
		}
	}
	return words
}

// names are those of the programs in use.
func (x *xtRenderer) names() (names []string) {
	for _, i := range x.programs {
		if i != nil {
			names = append(names, i.name)
		}
	}
	return names
}

// unsupported says what of a State iptables can not do, and what it does instead.
func unsupported(s State) (all []string) {
	for _, v := range s.VIPs {
		for i := range v.Frontends {
			fe := &v.Frontends[i]
			for _, target := range []*Target{&fe.External, &fe.Internal} {
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
