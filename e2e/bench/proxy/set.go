package proxy

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"time"

	"github.com/fanfare-lb/fanfare/e2e/bench/measure"
	"github.com/fanfare-lb/fanfare/internal/base/sortedset"
	"github.com/fanfare-lb/fanfare/proxy"
)

// SetCommand is the first argument of the process that measures proxy.Proxy alone, with its
// own namespace, heap and garbage collector.
const SetCommand = "set"

// A setJob is the input of that process.
type setJob struct{ Services, Endpoints, Changes int }

// A setTrial holds the durations of proxy.Set, from a State to the kernel's confirmation.
type setTrial struct {
	Loads   measure.Sample // all Services into an empty namespace
	Changes measure.Sample // one endpoint of one Service is replaced
	Counts  measure.Sample // one endpoint of one Service is removed, or added again
}

// measureSet runs the process on each of the given nodes, because the kernel would still
// free the memory of a deleted table when the next one is loaded. It measures changes on
// the first node.
func (b *bench) measureSet(ctx context.Context, on []*node) (t setTrial, err error) {
	for i, n := range on {
		job := setJob{Services: b.services, Endpoints: b.endpoints}
		if i == 0 {
			job.Changes = b.sets
		}
		one, err := job.start(ctx, n)
		if err != nil {
			return t, err
		}
		if i == 0 {
			t = one
		} else {
			t.Loads = append(t.Loads, one.Loads...)
		}
	}
	return t, nil
}

// start runs the process on a node.
func (j setJob) start(ctx context.Context, on *node) (t setTrial, err error) {
	text, err := json.Marshal(j)
	if err != nil {
		return t, err
	}
	cmd := exec.CommandContext(ctx, "/proc/self/exe", SetCommand, string(text))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return t, err
	}
	if err := on.Do(cmd.Start); err != nil {
		return t, err
	}
	err = json.NewDecoder(out).Decode(&t)
	return t, errors.Join(err, cmd.Wait())
}

// RunSet is the main function of that process.
func RunSet(ctx context.Context, text string, out io.Writer) error {
	var job setJob
	if err := json.Unmarshal([]byte(text), &job); err != nil {
		return err
	}
	t, err := job.run(ctx)
	if err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(t)
}

func (j setJob) run(ctx context.Context) (t setTrial, err error) {
	s := j.state()
	p, err := proxy.New(ctx, proxy.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return t, err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	if err := timeSet(ctx, p, s, &t.Loads); err != nil {
		return t, err
	}
	for i := range j.Changes {
		if s, err = j.replace(ctx, p, s, i, &t); err != nil {
			return t, err
		}
	}
	return t, nil
}

// replace changes one endpoint of a Service and back, then removes it and adds it again.
func (j setJob) replace(ctx context.Context, p *proxy.Proxy, s proxy.State, i int, t *setTrial) (proxy.State, error) {
	n := i * 7919 % j.Services
	pods := podsOf(n, j.Endpoints)
	other := slices.Clone(pods)
	other[0] = newPod(i)
	for _, step := range []struct {
		pods []netip.Addr
		to   *measure.Sample
	}{{other, &t.Changes}, {pods, &t.Changes}, {pods[1:], &t.Counts}, {pods, &t.Counts}} {
		s.VIPs = sortedset.With(s.VIPs, []*proxy.VIP{setVIP(n, step.pods)}, proxy.CompareVIPs)
		if err := timeSet(ctx, p, s, step.to); err != nil {
			return s, err
		}
	}
	return s, nil
}

func timeSet(ctx context.Context, p *proxy.Proxy, s proxy.State, to *measure.Sample) error {
	began := time.Now()
	err := p.Set(ctx, s)
	*to = append(*to, time.Since(began))
	return err
}

// state returns the State that the speaker on the pods' node derives from the Services.
func (j setJob) state() proxy.State {
	var vips []*proxy.VIP
	for n := range j.Services {
		vips = append(vips, setVIP(n, podsOf(n, j.Endpoints)))
	}
	return proxy.State{
		Node: home, Owned: []netip.Prefix{netip.MustParsePrefix("198.18.0.0/15")},
		VIPs: sortedset.SetOf(vips, proxy.CompareVIPs),
	}
}

func setVIP(n int, pods []netip.Addr) *proxy.VIP {
	slices.SortFunc(pods, netip.Addr.Compare)
	var external, internal proxy.Target
	for _, a := range pods {
		external.Backends = append(external.Backends, proxy.Backend{Node: home, Addr: netip.AddrPortFrom(a, podPort)})
	}
	internal = proxy.Target{Backends: external.Backends, Remote: proxy.Preserve}
	v := &proxy.VIP{Addr: vip(n)}
	for _, p := range protocols(n) {
		number := proxy.TCP
		if portName(p) == "udp" {
			number = proxy.UDP
		}
		v.Frontends = append(v.Frontends, proxy.Frontend{
			Protocol: number, Port: servicePort, External: external, Internal: internal,
		})
	}
	return v
}
