package watch

import (
	"bytes"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/testing/clustertest"
)

// A tenant's mistakes are logged up to a bound, and hide neither another tenant's nor an
// administrator's.
func TestProblemLogBounds(t *testing.T) {
	var out bytes.Buffer
	l := newProblemLog(slog.New(slog.NewTextHandler(&out, nil)), "problem with an object")
	lines := func(text string) int { return strings.Count(out.String(), text) }
	now := time.Unix(1000, 0)
	var all []cluster.Problem
	for i := range 2000 {
		all = append(all, cluster.Problem{
			Object:  cluster.Key{Kind: "Service", Name: cluster.Name{Namespace: "evil", Name: fmt.Sprintf("s%d", i)}},
			Message: "wrong",
		})
	}
	for i := range 2 * maxProblemLines {
		all = append(all, cluster.Problem{
			Object: cluster.Named("AddressPool", fmt.Sprintf("p%d", i)), Message: "wrong",
		})
	}
	l.write(append(all, cluster.Problem{Object: cluster.Key{Kind: "Service",
		Name: cluster.Name{Namespace: "shop", Name: "web"}}, Message: "wrong"}), now)
	if n := lines("Service evil/"); n != maxProblemLines {
		t.Errorf("%d lines of one namespace, want %d", n, maxProblemLines)
	}
	if lines("namespace=evil") != 1 || lines("AddressPool p") != 2*maxProblemLines || lines("Service shop/web") != 1 {
		t.Errorf("log:\n%s", &out)
	}
	l.write(all[:1], now.Add(problemInterval))
	if n := lines("Service evil/"); n != maxProblemLines+1 {
		t.Errorf("%d lines of one namespace after an interval, want one more than %d", n, maxProblemLines)
	}
}

// However many mistakes a tenant's objects have, a change costs others hardly more than without them,
// also a change of such an object.
func TestMistakesDelayNoChange(t *testing.T) {
	a, err := newAPI(&rest.Config{Host: "127.0.0.1:1"}, Options{Log: slog.New(slog.DiscardHandler)})
	must(t, err)
	wrong := func(i, version int) *corev1.Service {
		s := clustertest.Service(fmt.Sprintf("s%d", i))
		s.Namespace = "evil"
		var list []string
		for j := range 25 {
			list = append(list, fmt.Sprintf("wrong-%d-%d-%d", version, i, j))
		}
		s.Annotations = map[string]string{"fanfare.io/bgp-communities": strings.Join(list, ",")}
		return s
	}
	change := func(of func(version int) runtime.Object) time.Duration {
		least := time.Hour
		for version := range 5 {
			obj := of(version)
			least = min(least, cpu(t, func() {
				a.change(func(b *cluster.Builder) { b.Set(obj, "") })
				a.Snapshot()
			}))
		}
		return least
	}
	victim := func(version int) runtime.Object {
		return clustertest.EndpointSlice("web-1", "web", fmt.Sprintf("10.0.0.%d", version+1))
	}
	a.change(func(b *cluster.Builder) { b.Set(clustertest.Service("web"), "") })
	alone := change(victim)
	for i := range 2000 {
		a.change(func(b *cluster.Builder) { b.Set(wrong(i, 0), "") })
	}
	if took := cpu(t, func() { a.Snapshot() }); took > time.Second {
		t.Errorf("the first snapshot takes %v of CPU time", took)
	}
	if n := len(a.Snapshot().Problems); n != 2000*21 {
		t.Errorf("%d problems", n)
	}
	const most = 100 * time.Millisecond // with the race detector, ten times what it is otherwise
	if took := change(victim); took > alone+most {
		t.Errorf("a change of another object takes %v of CPU time, and %v without the mistakes", took, alone)
	}
	if took := change(func(version int) runtime.Object { return wrong(7, version+1) }); took > alone+most {
		t.Errorf("a change of an object with mistakes takes %v of CPU time", took)
	}
}

// cpu returns the CPU time of the process that f takes, without the garbage collector's.
func cpu(t *testing.T, f func()) time.Duration {
	t.Helper()
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	used := func() time.Duration {
		var u unix.Rusage
		must(t, unix.Getrusage(unix.RUSAGE_SELF, &u))
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	began := used()
	f()
	return used() - began
}
