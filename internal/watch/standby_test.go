package watch

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/testing/bubble"
)

// A speaker that starts while the API server is away goes on with what it knew a short time
// ago, and with the API server once that answers. What it knew earlier than that, or what may be
// from before a reboot, it does not use, however the wall clock was set meanwhile.
func TestStandby(t *testing.T) {
	const boot = "b5b1"
	at := func(boot string, uptime time.Duration) func() (Moment, error) {
		return func() (Moment, error) { return Moment{boot, uptime}, nil }
	}
	for _, tt := range []struct {
		what  string
		saved Moment // zero: never
		now   func() (Moment, error)
		old   bool   // the saved snapshot is used
		err   string // why not
	}{
		{"seconds ago", Moment{boot, time.Hour}, at(boot, time.Hour+20*time.Second), true, ""},
		{"just young enough", Moment{boot, time.Hour}, at(boot, time.Hour+MaxSnapshotAge), true, ""},
		{"too old", Moment{boot, time.Hour}, at(boot, 4*time.Hour), false,
			"was last in step with the API server 3h0m0s ago"},
		{"before a reboot", Moment{boot, time.Hour}, at("c7", time.Hour+time.Second), false, "not of this boot"},
		{"from the future", Moment{boot, time.Hour}, at(boot, time.Minute), false, "not of this boot"},
		{"by a version that did not confirm", Moment{}, at(boot, time.Minute), false, "in-step.json: no such file"},
		{"no clock", Moment{boot, time.Hour}, func() (Moment, error) { return Moment{}, errors.New("broken clock") },
			false, "broken clock"},
	} {
		t.Run(tt.what, func(t *testing.T) {
			dir := t.TempDir()
			file := SavedSnapshot{filepath.Join(dir, "cluster.json"), filepath.Join(dir, "in-step.json"), tt.now}
			if err := file.Save(&cluster.Snapshot{Pools: []*cluster.Pool{{Name: "old"}}}); err != nil {
				t.Fatal(err)
			}
			if tt.saved != (Moment{}) {
				if err := file.Confirm(tt.saved); err != nil {
					t.Fatal(err)
				}
			}
			if _, _, err := file.Recall(); !tt.old && (err == nil || !strings.Contains(err.Error(), tt.err)) {
				t.Errorf("error %v, want %q", err, tt.err)
			}
			bubble.Test(t, func(t *testing.T) { startWhileAway(t, file, tt.old) })
		})
	}
}

// startWhileAway opens a Standby an hour before the API server answers.
func startWhileAway(t *testing.T, file SavedSnapshot, old bool) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	began := time.Now()
	api := &live{fixed: fixed{
		snapshot: &cluster.Snapshot{Pools: []*cluster.Pool{{Name: "new"}}}, changed: make(chan struct{}, 1),
	}}
	s, err := OpenStandby(ctx, file, quiet, func(context.Context, func()) (LiveSource, error) {
		time.Sleep(time.Hour)
		return api, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	switch got := s.Snapshot(); {
	case !old && (time.Since(began) != time.Hour || got.Pools[0].Name != "new"):
		t.Errorf("there was something to read after %s: %v", time.Since(began), got)
	case old && (got.Pools[0].Name != "old" || len(got.Problems) != 1 || s.InStep()):
		t.Errorf("while the API server is away: %v, in step %v", got, s.InStep())
	}
	<-s.Changed()
	if got := s.Snapshot(); got.Pools[0].Name != "new" || s.InStep() {
		t.Errorf("once it is back, with a connection that is lost again: %v, in step %v", got, s.InStep())
	}
	api.inStep = true
	if !s.InStep() {
		t.Error("not in step, although the source is")
	}
	api.changed <- struct{}{}
	<-s.Changed()
}

// A speaker whose connections are refused need not wait for long. Where another API server accepts
// one at once, or the wait is over anyway, a refusal changes nothing. Timers are the
// bubble's: exact to the nanosecond, and without a wait.
func TestStandbyRefused(t *testing.T) {
	for _, tt := range []struct {
		what             string
		refuses, answers time.Duration // after the start
		want             time.Duration // until there is a snapshot
		old              bool          // and it is the saved one
	}{
		{"at once", 0, time.Hour, RefusedDelay, true},
		{"at once, and another one answers", 0, RefusedDelay / 2, RefusedDelay / 2, false},
		{"after silence", time.Second, time.Hour, time.Second + RefusedDelay, true},
		{"at the end of the wait", standbyDelay - RefusedDelay/2, time.Hour, standbyDelay, true},
		{"too late", standbyDelay + time.Second, time.Hour, standbyDelay, true},
	} {
		t.Run(tt.what, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				dir := t.TempDir()
				file := SavedSnapshot{filepath.Join(dir, "cluster.json"), filepath.Join(dir, "in-step.json"),
					func() (Moment, error) { return Moment{"b5b1", time.Hour}, nil }}
				err := errors.Join(file.Save(&cluster.Snapshot{}), file.Confirm(Moment{"b5b1", time.Hour}))
				if err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				s, err := OpenStandby(t.Context(), file, quiet,
					func(_ context.Context, refused func()) (LiveSource, error) {
						time.AfterFunc(tt.refuses, func() {
							refused()
							refused() // by another request
						})
						<-time.After(tt.answers)
						return &live{fixed: fixed{snapshot: &cluster.Snapshot{}}, inStep: true}, nil
					})
				if took := time.Since(began); err != nil || took != tt.want || s.InStep() == tt.old {
					t.Errorf("after %s, in step %v, error %v", took, s.InStep(), err)
				}
				<-s.Changed() // open has returned
			})
		})
	}
}

// A closed port refuses connections; an API server that answers with an error does not.
func TestAPIRefused(t *testing.T) {
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	must(t, closed.Close())
	failing := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	defer failing.Close()
	for host, want := range map[string]bool{closed.Addr().String(): true, failing.Listener.Addr().String(): false} {
		ctx, cancel := context.WithCancel(t.Context())
		refused := make(chan struct{})
		time.AfterFunc(time.Second, cancel)
		_, err := OpenAPI(ctx, &rest.Config{Host: host},
			Options{Log: quiet, Refused: sync.OnceFunc(func() { close(refused); cancel() })})
		if err == nil {
			t.Fatalf("%s was read", host)
		}
		select {
		case <-refused:
			if !want {
				t.Errorf("not refused, but reported so: %v", err)
			}
		default:
			if want {
				t.Errorf("not reported as refused: %v", err)
			}
		}
	}
}

// Without a snapshot file there is nothing to do but wait.
func TestStandbyWithoutFile(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		began := time.Now()
		none := filepath.Join(t.TempDir(), "none")
		s, err := OpenStandby(t.Context(), SavedSnapshot{Path: none, InStepPath: none}, quiet,
			func(_ context.Context, refused func()) (LiveSource, error) {
				refused()
				time.Sleep(time.Minute)
				return nil, errors.New("the API server is gone for good")
			})
		if err == nil || time.Since(began) != time.Minute || s.InStep() {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
	})
}

// A confirmation that is half written after a crash would be one without an age.
func TestConfirmReplacesWhole(t *testing.T) {
	dir := t.TempDir()
	file := SavedSnapshot{filepath.Join(dir, "cluster.json"), filepath.Join(dir, "in-step.json"), nil}
	if err := os.WriteFile(file.InStepPath, []byte(`{"Boot":"a long one that is`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := file.Save(&cluster.Snapshot{}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := file.Recall(); err == nil || !strings.Contains(err.Error(), file.InStepPath) {
		t.Errorf("half a confirmation: %v", err)
	}
	now, err := file.Clock()
	if err != nil {
		t.Fatal(err)
	}
	if err := file.Confirm(now); err != nil {
		t.Fatal(err)
	}
	if _, age, err := file.Recall(); err != nil || age > time.Minute {
		t.Errorf("confirmed now: %s, %v", age, err)
	}
}

type fixed struct {
	snapshot *cluster.Snapshot
	changed  chan struct{}
}

func (f *fixed) Snapshot() *cluster.Snapshot { return f.snapshot }
func (f *fixed) Changed() <-chan struct{}    { return f.changed }

type live struct {
	fixed
	inStep bool
}

func (l *live) InStep() bool { return l.inStep }
