package speaker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
	"github.com/fanfare-lb/fanfare/internal/membership"
	"github.com/fanfare-lb/fanfare/internal/testing/bubble"
)

// A statusServer accepts SpeakerStatuses, or returns an error if the test sets one.
type statusServer struct {
	t  *testing.T
	mu sync.Mutex
	// status is reported next.
	status  Status
	fail    bool
	written []v1alpha1.SpeakerStatus
}

func (d *statusServer) RoundTrip(r *http.Request) (*http.Response, error) {
	if want := "/apis/fanfare.io/v1alpha1/speakerstatuses/n1"; r.Method != http.MethodPatch || r.URL.Path != want ||
		r.Header.Get("Content-Type") != "application/apply-patch+yaml" {
		d.t.Errorf("%s %s with %s", r.Method, r.URL, r.Header.Get("Content-Type"))
	}
	body, _ := io.ReadAll(r.Body) // from memory: no error
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fail {
		return nil, errors.New("connection refused")
	}
	var o v1alpha1.SpeakerStatus
	if err := json.Unmarshal(body, &o); err != nil {
		d.t.Error(err)
	}
	d.written = append(d.written, o)
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(bytes.NewReader(body))}, nil
}

func (d *statusServer) do(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f()
}

// The Reporter applies the object once for each change, and again after an error or a long
// time. The present Node owns the object; without a Node there is none.
func TestReporter(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		d := &statusServer{t: t, fail: true, status: reportedStatus()}
		r := d.report()
		expect := func(when string, n int) v1alpha1.SpeakerStatus {
			t.Helper()
			r.Trigger()
			// on the clock of the bubble, which jumps; three of these exceed rewriteInterval
			time.Sleep(4 * time.Minute)
			bubble.Wait()
			d.mu.Lock()
			defer d.mu.Unlock()
			if len(d.written) != n {
				t.Fatalf("%s: written %d times, want %d", when, len(d.written), n)
			}
			return d.written[n-1]
		}
		r.Trigger()
		time.Sleep(time.Minute)
		bubble.Wait()
		d.do(func() { d.fail = false })
		first := expect("after a failure", 1)
		if first.Name != "n1" || first.Status.Established != "1/2" || first.Status.Changed.IsZero() {
			t.Errorf("wrote %+v", first)
		}
		if o := first.OwnerReferences; len(o) != 1 || o[0].Kind != "Node" || o[0].Name != "n1" ||
			o[0].UID != "uid-n1" || o[0].BlockOwnerDeletion != nil {
			t.Errorf("owners %+v", o)
		}
		expect("no change", 1)
		if again := expect("after long", 2); !again.Status.Changed.Equal(&first.Status.Changed) {
			t.Errorf("changed at %s: nothing has since %s", again.Status.Changed, first.Status.Changed)
		}
		d.do(func() { d.status.NodeUID = "" })
		expect("without a Node", 2)
		d.do(func() { d.status.NodeUID = "uid-2" })
		if o := expect("another Node of the name", 3).OwnerReferences; len(o) != 1 || o[0].UID != "uid-2" {
			t.Errorf("owners %+v", o)
		}
		d.do(func() { d.status.Error = "no" })
		if o := expect("a change", 4); o.Status.Error != "no" || o.Status.Changed.Equal(&first.Status.Changed) {
			t.Errorf("wrote %+v", o)
		}
	})
}

// A change of the number of members alone is written the later the more members there are, and at once
// with any other change.
func TestMembersAreReportedRarely(t *testing.T) {
	members := func(alive, all int) *membership.Status {
		s := &membership.Status{}
		for i := range all {
			n := membership.MemberStatus{Node: fmt.Sprintf("n%d", i+1), State: "alive"}
			if i >= alive {
				n.State = "left"
			}
			s.Nodes = append(s.Nodes, n)
		}
		return s
	}
	for _, tt := range []struct {
		nodes int
		want  time.Duration
	}{{3, 5 * time.Second}, {100, 25 * time.Second}, {1000, 250 * time.Second}} {
		bubble.Test(t, func(t *testing.T) {
			d := &statusServer{t: t, status: reportedStatus()}
			d.status.Members = members(tt.nodes, tt.nodes)
			r := d.report()
			// written checks that the n-th report comes when this time has passed, and not before.
			written := func(n int, after time.Duration, members string) {
				t.Helper()
				r.Trigger()
				for _, step := range []struct {
					wait time.Duration
					want int
				}{{after - 1, n - 1}, {1, n}} {
					time.Sleep(step.wait) // on the clock of the bubble, which jumps
					bubble.Wait()
					d.do(func() {
						if len(d.written) != step.want {
							t.Fatalf("%d nodes: %d reports, want %d", tt.nodes, len(d.written), step.want)
						}
					})
				}
				d.do(func() {
					if got := d.written[n-1].Status.Members; got != members {
						t.Errorf("%d nodes: %s members, want %s", tt.nodes, got, members)
					}
				})
			}
			all := fmt.Sprintf("%d/%d", tt.nodes, tt.nodes)
			less := fmt.Sprintf("%d/%d", tt.nodes-1, tt.nodes)
			r.Trigger()
			bubble.Wait() // for the first report
			d.do(func() { d.status.Members = members(tt.nodes-1, tt.nodes) })
			written(2, tt.want, less)
			d.do(func() { d.status.Members, d.status.Error = members(tt.nodes, tt.nodes), "no" })
			written(3, reportInterval, all)
		})
	}
}

// report runs a Reporter of the status until the test ends.
func (d *statusServer) report() *Reporter {
	r := reporterTo(d.t, d)
	ctx, cancel := context.WithCancel(d.t.Context())
	d.t.Cleanup(cancel)
	go r.Run(ctx, func() (st Status) {
		d.do(func() { st = d.status })
		return st
	})
	return r
}

// reporterTo returns a Reporter with the given API server.
func reporterTo(t *testing.T, api http.RoundTripper) *Reporter {
	t.Helper()
	r, err := NewReporter(&rest.Config{Host: "http://api", Transport: api}, "n1", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Without an API server there is no Reporter.
func TestNoReporter(t *testing.T) {
	var r *Reporter
	r.Trigger()
	r.Run(t.Context(), reportedStatus)
}
