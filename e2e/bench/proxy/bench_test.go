package proxy

import (
	"context"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/e2e/bench/benchtest"
	"github.com/fanfare-lb/fanfare/e2e/bench/measure"
	"github.com/fanfare-lb/fanfare/e2e/kube"
	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

var update = flag.Bool("update", false, "update testdata")

// The process that measures Set is this program with another argument, in tests too.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == SetCommand {
		if err := RunSet(context.Background(), os.Args[2], os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// A quick run measures everything: the real programs load and change rules, every
// connection succeeds and every datagram arrives.
func TestBenchmarkMeasuresEverything(t *testing.T) {
	if testing.Short() {
		t.Skip("a control plane and three programs take many seconds")
	}
	if os.Geteuid() != 0 {
		nstest.Missing(t, "network namespaces need root")
	}
	for _, program := range []string{"ip", "nft", legacy["iptables"]} {
		if _, err := exec.LookPath(program); err != nil {
			nstest.Missing(t, err.Error())
		}
	}
	if _, err := kube.Tools(t.Context(), false); err != nil {
		nstest.Missing(t, err.Error())
	}
	o := options{Inputs: benchtest.Inputs(t)}
	o.quicken()
	r, text := benchtest.Once(t, o.steps())
	if strings.Contains(text, "–) |") || strings.Contains(text, "| – |") || strings.Contains(text, "NaN") {
		t.Error("something was not measured")
	}
	for _, l := range r.Lanes {
		some := func(n int) bool { return n == 0 || n == o.rounds.Count }
		if len(l.Connections) != o.rounds.Count || !some(len(l.Requests)) || !some(len(l.Datagrams)) {
			t.Errorf("%s: %d, %d and %d rounds", l.Name, len(l.Connections), len(l.Requests), len(l.Datagrams))
		}
	}
	for _, x := range r.Trials {
		if len(x.Changes) != 2*o.repeats || x.Loaded <= 0 || x.Writing <= 0 || x.Usage.RSS == 0 || x.Kernel == 0 {
			t.Errorf("%+v", x)
		}
	}
	for _, x := range r.LoadOnly.Trials {
		if len(x.Changes) != 2*o.repeats || x.Loaded <= 0 || x.Usage.RSS == 0 {
			t.Errorf("%d Services: %+v", o.loadServices, x)
		}
	}
	if len(r.LoadOnly.Trials) != len(nftablesPrograms()) {
		t.Errorf("%d programs with %d Services", len(r.LoadOnly.Trials), o.loadServices)
	}
	if len(r.Trials) != len(programs()) || len(r.Set.Changes) != 2*o.sets || len(r.Set.Counts) != 2*o.sets {
		t.Errorf("%d programs, Set %d and %d", len(r.Trials), len(r.Set.Changes), len(r.Set.Counts))
	}
}

// report.golden.md is the page for given numbers.
func TestReportShowsNumbers(t *testing.T) {
	plain := func(size int, factor rate) laneResult {
		return laneResult{
			Name: plainName, Size: size, Connections: []rate{20000, 22000, 21000}, Requests: []rate{10000, 10100, 9900},
			Datagrams: []rate{200000 * factor, 210000, 190000},
		}
	}
	one, many := plain(0, 1), plain(10000, 1)
	slower := func(base laneResult, size int, name string, part rate) laneResult {
		l := laneResult{Name: name, Size: size}
		for i := range base.Connections {
			l.Connections = append(l.Connections, base.Connections[i]*part)
			l.Requests = append(l.Requests, base.Requests[i]*(1+part)/2)
			l.Datagrams = append(l.Datagrams, base.Datagrams[i]*part)
		}
		return l
	}
	lanes := []laneResult{one, slower(one, 0, againName, 1.01), slower(one, 1, ruleName, 0.97), many}
	for _, base := range []laneResult{one, many} {
		size := max(1, base.Size)
		masked := slower(base, size, "Fanfare nftables"+maskedTo, 0.9)
		masked.Datagrams = nil
		lanes = append(lanes, slower(base, size, "Fanfare nftables", 0.93-0.04*rate(size/10000)),
			slower(base, size, fastName, 0.97), masked, slower(base, size, "kube-proxy iptables", 0.5))
	}
	lanes[len(lanes)-4].Connections[0] *= 0.9
	ms := func(all ...float64) (s measure.Sample) {
		for _, n := range all {
			s = append(s, time.Duration(n*float64(time.Millisecond)))
		}
		return s
	}
	text, err := report{
		Began: time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC), Took: 17*time.Minute + time.Second,
		Machine: measure.Machine{
			Cores: 2, CPU: "a CPU", Kernel: "6.18", System: "a system", Load: "0.10", Go: "go1.26", Fanfare: "devel",
			Kubernetes: "v1.36.0", NFT: "nftables v1", IPTables: "iptables v1",
		},
		Services: 10000, Endpoints: 10, Rounds: rounds{3, 300 * time.Millisecond}, Lanes: lanes,
		Trials: []trial{
			{"Fanfare nftables", 2 * time.Second, time.Second, ms(5, 6, 7), ms(4, 4, 4),
				measure.Usage{RSS: 90e6, Peak: 100e6}, 50e6},
			{"kube-proxy nftables", 200 * time.Second, 190 * time.Second, ms(5000), ms(4),
				measure.Usage{RSS: 900e6, Peak: 1000e6}, 500e6},
		},
		LoadOnly: loadOnly{50_000, []trial{
			{Program: "Fanfare nftables", Loaded: 9 * time.Second, Changes: ms(5, 6, 7),
				Usage: measure.Usage{RSS: 340e6, Peak: 350e6}},
			{Program: "kube-proxy nftables", Loaded: 400 * time.Second, Changes: ms(2000),
				Usage: measure.Usage{RSS: 1500e6, Peak: 1600e6}},
		}},
		Set: setTrial{Loads: ms(900, 1000, 1100), Changes: ms(0.08, 0.09, 0.3), Counts: ms(0.2, 0.3)},
	}.render()
	if err != nil {
		t.Fatal(err)
	}
	const golden = "testdata/report.golden.md"
	if *update {
		if err := os.WriteFile(golden, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if text != string(want) {
		t.Errorf("not as in %s, which -update writes:\n%s", golden, text)
	}
}

func TestTargets(t *testing.T) {
	base := laneResult{Name: plainName, Connections: []rate{100}, Datagrams: []rate{100}}
	at := func(c, d rate, p99 time.Duration) string {
		l := laneResult{Name: rulesName, Size: 1, Connections: []rate{c}, Datagrams: []rate{d}}
		fast := laneResult{Name: fastName, Size: 1, Connections: []rate{d}, Datagrams: []rate{c}}
		var verdicts []string
		for _, x := range (report{Services: 10, Lanes: []laneResult{base, l, fast},
			Set: setTrial{Changes: measure.Sample{p99}}}).Targets() {
			verdicts = append(verdicts, x.Verdict)
		}
		return strings.Join(verdicts, " ")
	}
	for _, tt := range []struct {
		c, d rate
		p99  time.Duration
		want string
	}{
		{90, 99, 999 * time.Microsecond, "met met met met met"},
		{89, 90, time.Millisecond, "**missed** met met **missed** **missed**"},
	} {
		if got := at(tt.c, tt.d, tt.p99); got != tt.want {
			t.Errorf("%v: %s", tt, got)
		}
	}
}

func TestQuartiles(t *testing.T) {
	for _, tt := range []struct {
		of   []float64
		want quartiles
	}{
		{nil, quartiles{}},
		{[]float64{7}, quartiles{7, 7, 7}},
		{[]float64{5, 1, 4, 2, 3}, quartiles{2, 3, 4}},
	} {
		if got := quartilesOf(tt.of); got != tt.want {
			t.Errorf("%v: %v, want %v", tt.of, got, tt.want)
		}
	}
	// The ratio is taken in each round: medians alone would give 1.
	if got := ratios([]rate{50, 200, 300}, []rate{100, 200, 300}); got.Low != 1 || got.Median != 1 || got.High != 1 {
		t.Errorf("%v", got)
	}
	if got := ratios([]rate{50, 100, 300}, []rate{100, 200, 300}).Median; got != 0.5 {
		t.Errorf("%v", got)
	}
}

// Every pod and every VIP has its own address.
func TestAddressesAreDistinct(t *testing.T) {
	seen := map[netip.Addr]string{}
	add := func(a netip.Addr, what string) {
		if was, ok := seen[a]; ok {
			t.Fatalf("%s is %s and %s", a, was, what)
		}
		seen[a] = what
	}
	pods, pool := netip.MustParsePrefix(podNet), netip.MustParsePrefix("198.18.0.0/15")
	for n := range maxServices {
		if a := vip(n); !pool.Contains(a) {
			t.Fatalf("vip %s", a)
		}
		add(vip(n), "a VIP")
		for _, i := range []int{0, maxEndpoints - 1} {
			if a := pod(n, i, maxEndpoints); !pods.Contains(a) {
				t.Fatalf("pod %s", a)
			}
			add(pod(n, i, maxEndpoints), "a pod")
		}
		if a := newPod(n); !pods.Contains(a) {
			t.Fatalf("newcomer %s", a)
		}
		add(newPod(n), "a newcomer")
	}
}

// Each destination appears once, far from its neighbours.
func TestStrideVisitsAll(t *testing.T) {
	all := each(1000, 80, func(n int) []netip.Addr { return []netip.Addr{vip(n)} }).udp
	got := stride(all)
	if slices.Equal(got, all) {
		t.Error("the order has not changed")
	}
	slices.SortFunc(got, netip.AddrPort.Compare)
	if !slices.Equal(got, all) {
		t.Errorf("%d of %d are left", len(got), len(all))
	}
	// A multiple of the stride would repeat one destination forever.
	if whole := slices.Repeat(all, 16)[:7919]; stride(whole)[0] == stride(whole)[1] {
		t.Error("one destination for all")
	}
}

func TestSNMPCounter(t *testing.T) {
	const text = "Ip: Forwarding\nIp: 1\nUdp: InDatagrams NoPorts RcvbufErrors\nUdp: 12 3 45\nUdpLite: " +
		"RcvbufErrors\nUdpLite: 7\n"
	if n, err := snmp(text, "Udp", "RcvbufErrors"); n != 45 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	for _, name := range []string{"None", "Forwarding"} {
		if n, err := snmp(text, "Udp", name); err == nil {
			t.Errorf("%s is %d", name, n)
		}
	}
}
