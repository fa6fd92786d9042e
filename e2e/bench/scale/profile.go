package scale

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fanfare-lb/fanfare/e2e/lab"
)

// A profile is what kube-apiserver did from the beginning of a phase on, by its own CPU profile. After a restart, it
// begins when the new process answers.
type profile struct {
	Lasted time.Duration
	Parts  map[string]time.Duration // CPU time by the name of a part
}

// A part is what a sample of the profile counts as if one of the functions is in its stack.
type part struct {
	name      string
	functions []string
}

// parts are in the order in which they are tried: an event is encoded for a watch below the handler of lists.
var parts = []part{
	{"garbage collector", []string{"runtime.gcBgMarkWorker", "runtime.gcAssistAlloc", "runtime.bgsweep",
		"runtime.bgscavenge"}},
	{"its own start", []string{"apiserver/pkg/server.runPostStartHook"}},
	{"sends events and streamed lists to watches",
		[]string{"endpoints/handlers.(*WatchServer)", "endpoints/handlers.(*watchE"}},
	{"answers lists", []string{"endpoints/handlers.ListResource"}},
	{"writes", []string{"endpoints/handlers.(*patcher)", "endpoints/handlers.UpdateResource",
		"endpoints/handlers.createHandler", "endpoints/handlers.DeleteResource"}},
	{"answers reads of one object", []string{"endpoints/handlers.getResourceHandler"}},
	{"gets events from etcd and hands them to watches",
		[]string{"apiserver/pkg/storage/cacher", "apiserver/pkg/storage/etcd3", "go.etcd.io/etcd"}},
	{"HTTP/2, TLS, authentication and flow control",
		[]string{"net/http.(*conn)", "net/http2.(*serverConn)", "crypto/tls", "apiserver/pkg/server"}},
	{"scheduler", []string{"runtime.schedule", "runtime.mcall", "runtime.mstart"}},
	{"the rest", []string{""}}, // which is in each stack
}

// profileFor returns a function that has kube-apiserver make a profile from now on.
func (b *bench) profileFor(lasts time.Duration) func(context.Context) (*profile, error) {
	return func(ctx context.Context) (*profile, error) {
		data, err := b.requestProfile(ctx, lasts)
		if err != nil {
			return nil, err
		}
		return b.readProfile(ctx, data, lasts)
	}
}

// answerLimit is how long a restarted API server may take to begin a profile: as long as it may take to be ready.
const answerLimit = 2 * time.Minute

// profileAfter returns a function that has kube-apiserver make a profile when it is started again. Before ended is
// closed, the old process would take the request, and end with it. The new one makes a profile even before it is ready.
func (b *bench) profileAfter(ended <-chan struct{}, lasts time.Duration) func(context.Context) (*profile, error) {
	return func(ctx context.Context) (*profile, error) {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-ended:
		}
		var data []byte
		err := lab.Await(ctx, answerLimit, "restarted API server", func() (err error) {
			data, err = b.requestProfile(ctx, lasts)
			return err
		})
		if err != nil {
			return nil, err
		}
		return b.readProfile(ctx, data, lasts)
	}
}

// profiledSeconds is how long a profile lasts: kube-apiserver counts in seconds.
func profiledSeconds(lasts time.Duration) int { return max(1, int(lasts.Seconds())) }

// requestProfile returns kube-apiserver's profile of the next seconds. client-go does not retry: it would wait for a
// second first, which the profile would miss.
func (b *bench) requestProfile(ctx context.Context, lasts time.Duration) ([]byte, error) {
	data, err := b.core.Get().AbsPath("/debug/pprof/profile").Param("seconds", fmt.Sprint(profiledSeconds(lasts))).
		Timeout(lasts + time.Minute).MaxRetries(0).DoRaw(ctx)
	if err != nil {
		return nil, fmt.Errorf("profile of kube-apiserver: %w", err)
	}
	return data, nil
}

// readProfile returns what is in kube-apiserver's answer.
func (b *bench) readProfile(ctx context.Context, data []byte, lasts time.Duration) (*profile, error) {
	path := filepath.Join(b.dir, "apiserver.pprof")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		return nil, err
	}
	traces, err := exec.CommandContext(ctx, "go", "tool", "pprof", "-traces", path).Output()
	if err != nil {
		return nil, fmt.Errorf("go tool pprof: %w", err)
	}
	p := &profile{time.Duration(profiledSeconds(lasts)) * time.Second, map[string]time.Duration{}}
	return p, p.add(traces)
}

// add adds the samples in the output of pprof -traces: after each line of dashes, a CPU time with the innermost
// function, and then the functions that called it.
func (p *profile) add(traces []byte) error {
	_, body, _ := bytes.Cut(traces, []byte("\n-----------+"))
	for sample := range bytes.SplitSeq(body, []byte("\n-----------+")) {
		_, stack, _ := strings.Cut(string(sample), "\n") // the rest of the dashes
		if stack = strings.TrimSpace(stack); stack == "" {
			continue
		}
		value, functions, _ := strings.Cut(stack, " ")
		spent, err := time.ParseDuration(value)
		if err != nil {
			return fmt.Errorf("pprof -traces, %q: %w", stack, err)
		}
		p.Parts[partOf(functions)] += spent
	}
	return nil
}

// partOf returns the name of the part that a stack belongs to.
func partOf(stack string) string {
	i := slices.IndexFunc(parts, func(p part) bool {
		return slices.ContainsFunc(p.functions, func(f string) bool { return strings.Contains(stack, f) })
	})
	return parts[i].name
}

// A profileRow is the percentage of a core that a part takes in each profiled phase, of speakers and of kube-proxies.
type profileRow struct {
	Part  string
	Cells []string
}

// A profileTable compares the profiles of the larger cluster.
type profileTable struct {
	Phases []string
	Rows   []profileRow
}

// Profiles returns the table, nil without profiles.
func (r report) Profiles() *profileTable {
	t := &profileTable{}
	for _, p := range parts {
		t.Rows = append(t.Rows, profileRow{Part: p.name})
	}
	for _, s := range r.phases(r.Large, speakers) {
		p, _ := r.find(r.Large, proxies, s.Name)
		if s.Profile == nil || p.Profile == nil {
			continue
		}
		t.Phases = append(t.Phases, s.Name)
		for i := range t.Rows {
			row := &t.Rows[i]
			row.Cells = append(row.Cells, s.Profile.percent(row.Part)+" / "+p.Profile.percent(row.Part))
		}
	}
	if len(t.Phases) == 0 {
		return nil
	}
	return t
}

// percent is the percentage of a core that a part took.
func (p *profile) percent(name string) string {
	return fmt.Sprintf("%.1f %%", 100*p.Parts[name].Seconds()/p.Lasted.Seconds())
}
