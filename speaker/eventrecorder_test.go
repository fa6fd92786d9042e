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
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/fanfare-lb/fanfare/bgp"
	"github.com/fanfare-lb/fanfare/internal/testing/bubble"
	"github.com/fanfare-lb/fanfare/internal/testing/plantest"
)

// An eventServer stores Events as an API server does.
type eventServer struct {
	mu     sync.Mutex
	away   bool
	lost   bool   // it accepts requests, and responses are lost
	status int    // response to all requests if not 0
	body   []byte // of that response, the request's if nil
	events map[string]*eventsv1.Event
	writes int
}

func (b *eventServer) RoundTrip(r *http.Request) (*http.Response, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	body, _ := io.ReadAll(r.Body) // from memory: no error
	if b.away {
		return nil, fmt.Errorf("connection refused")
	}
	b.writes++
	status := b.status
	if status == 0 {
		status = b.take(r, body)
	} else if b.body != nil {
		body = b.body
	}
	if b.lost {
		return nil, fmt.Errorf("connection reset")
	}
	return &http.Response{StatusCode: status, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(bytes.NewReader(body))}, nil
}

func (b *eventServer) take(r *http.Request, body []byte) int {
	path, ok := strings.CutPrefix(r.URL.Path, "/apis/events.k8s.io/v1/namespaces/")
	namespace, rest, _ := strings.Cut(path, "/")
	var e eventsv1.Event
	if !ok || json.Unmarshal(body, &e) != nil {
		return http.StatusBadRequest
	}
	switch name, patch := strings.CutPrefix(rest, "events/"); {
	case patch && r.Method == http.MethodPatch:
		old := b.events[namespace+"/"+name]
		if old == nil {
			return http.StatusNotFound
		}
		old.Series = e.Series
		return http.StatusOK
	case r.Method == http.MethodPost && rest == "events" && e.Namespace == namespace:
		if b.events[namespace+"/"+e.Name] != nil {
			return http.StatusConflict
		}
		b.events[namespace+"/"+e.Name] = &e
		return http.StatusCreated
	}
	return http.StatusMethodNotAllowed
}

// counts returns how often each reason was reported, by the stored Events.
func (b *eventServer) counts() map[string]int32 {
	bubble.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	counts := map[string]int32{}
	for _, e := range b.events {
		n := int32(1)
		if e.Series != nil {
			n = e.Series.Count
		}
		counts[e.Reason] += n
	}
	return counts
}

// A recorderTest is an eventRecorder that observes an eventTest.
type recorderTest struct {
	*eventServer
	*eventTest
	recorder *eventRecorder
	mu       sync.Mutex
}

// withRecorder runs f in a bubble, with a recorder that observes it.
func withRecorder(t *testing.T, f func(s *recorderTest)) {
	worlds := newEventTest(t, reported{}) // reads files, outside of the bubble
	worlds.world(plantest.LocalService("web", "uid-web", "192.0.2.1", "n1"))
	bubble.Test(t, func(t *testing.T) {
		s := &recorderTest{eventServer: &eventServer{events: map[string]*eventsv1.Event{}}, eventTest: worlds}
		s.recorder = reporterTo(t, s.eventServer).eventRecorder(reported{})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go s.recorder.run(ctx, func() (observation, bool) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.at = time.Now()
			return s.observation, true
		})
		f(s)
	})
}

// set changes the first session, and triggers the recorder.
func (s *recorderTest) set(state bgp.SessionState) {
	s.mu.Lock()
	s.at = time.Now()
	s.session("tor1", state, "it said so")
	s.mu.Unlock()
	s.recorder.trigger()
}

func (s *recorderTest) expect(t *testing.T, when string, want map[string]int32) {
	t.Helper()
	got := s.counts()
	for reason := range want {
		if got[reason] != want[reason] {
			t.Errorf("%s: %s was reported %d times, want %d; all: %v", when, reason, got[reason], want[reason], got)
		}
	}
}

// A change is reported once: when the API server is reachable again, and when it accepted
// an Event but its response was lost. What came and went meanwhile is not reported.
func TestEventIsRecordedOnce(t *testing.T) {
	withRecorder(t, func(s *recorderTest) {
		s.away = true
		s.set(bgp.Established)
		time.Sleep(time.Minute)
		s.expect(t, "away", map[string]int32{"SessionEstablished": 0})
		s.eventServer.mu.Lock()
		s.away, s.lost = false, true
		s.eventServer.mu.Unlock()
		time.Sleep(5 * time.Minute)
		s.expect(t, "answers are lost", map[string]int32{"SessionEstablished": 1, "Announced": 0})
		s.eventServer.mu.Lock()
		s.lost = false
		s.eventServer.mu.Unlock()
		time.Sleep(5 * time.Minute)
		s.expect(t, "back", map[string]int32{"SessionEstablished": 1, "Announced": 1})
		before := s.writes
		for range 100 {
			s.recorder.trigger()
			time.Sleep(time.Second)
		}
		if s.counts(); s.writes != before {
			t.Errorf("%d writes without changes", s.writes-before)
		}
		s.eventServer.mu.Lock()
		s.status = http.StatusForbidden
		s.eventServer.mu.Unlock()
		s.set(bgp.Idle)
		time.Sleep(time.Minute)
		s.eventServer.mu.Lock()
		s.status = 0
		s.eventServer.mu.Unlock()
		s.set(bgp.Established)
		time.Sleep(time.Minute)
		s.expect(t, "one was refused for good", map[string]int32{"SessionEstablished": 2, "SessionLost": 0})
	})
}

// While the API server is unreachable, Events don't accumulate: afterwards it receives the
// changes before the outage, and the total change during it. A deleted Event is replaced by
// a new one.
func TestEventsAfterAPIOutage(t *testing.T) {
	withRecorder(t, func(s *recorderTest) {
		s.eventServer.mu.Lock()
		s.away = true
		s.eventServer.mu.Unlock()
		for range 100 {
			s.set(bgp.Established)
			time.Sleep(10 * time.Second)
			s.set(bgp.Idle)
			time.Sleep(10 * time.Second)
		}
		s.set(bgp.Established)
		s.eventServer.mu.Lock()
		s.away = false
		s.eventServer.mu.Unlock()
		time.Sleep(10 * time.Minute)
		s.expect(t, "back", map[string]int32{"SessionEstablished": 1, "SessionLost": 1, "Announced": 1})
		for range 2 {
			s.set(bgp.Idle)
			time.Sleep(time.Minute)
			s.set(bgp.Established)
			time.Sleep(time.Minute)
		}
		s.expect(t, "twice more", map[string]int32{"SessionEstablished": 3, "SessionLost": 3})
		s.eventServer.mu.Lock()
		clear(s.eventServer.events)
		s.eventServer.mu.Unlock()
		s.set(bgp.Idle)
		time.Sleep(time.Minute)
		s.expect(t, "once after all was forgotten", map[string]int32{"SessionLost": 1})
		time.Sleep(2 * seriesWindow)
		s.set(bgp.Established)
		time.Sleep(time.Minute)
		s.set(bgp.Idle)
		time.Sleep(time.Minute)
		s.eventServer.mu.Lock()
		defer s.eventServer.mu.Unlock()
		if len(s.eventServer.events) != 3 {
			t.Errorf("%d Events, want two of one series that is over, and one", len(s.eventServer.events))
		}
	})
}

// A flapping session has a few Events, each with a count, and causes two writes a minute in
// the long run.
func TestFlappingSessionIsRateLimited(t *testing.T) {
	withRecorder(t, func(s *recorderTest) {
		for range 3600 {
			s.set(bgp.Idle)
			time.Sleep(time.Second)
			s.set(bgp.Established)
			time.Sleep(time.Second)
		}
		counts := s.counts()
		if most := eventBurst + int(2*time.Hour/eventRefill) + 1; s.writes > most || s.writes < most/2 {
			t.Errorf("%d writes in two hours, want %d at most", s.writes, most)
		}
		if announced := counts["SessionLost"] + counts["SessionEstablished"]; int(announced) < s.writes-10 {
			t.Errorf("%d writes for %d changes", s.writes, announced)
		}
		if len(s.events) > 10 {
			t.Errorf("%d Events: they are no series", len(s.events))
		}
	})
}

// Without an API server there is no recorder.
func TestNilEventRecorder(t *testing.T) {
	h := (*Reporter)(nil).eventRecorder(reported{})
	h.trigger()
	h.run(t.Context(), nil)
}

// An Event that a namespace's deletion refuses is no warning, and one that is refused for another
// reason is.
func TestEventsOfDeletedNamespace(t *testing.T) {
	events := schema.GroupResource{Group: "events.k8s.io", Resource: "events"}
	ending := apierrors.NewForbidden(events, "e", errors.New("namespace shop is being terminated"))
	ending.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause,
		Field: "metadata.namespace"}}
	for name, tt := range map[string]struct {
		refusal *apierrors.StatusError
		warns   bool
	}{
		"being deleted": {ending, false},
		"deleted":       {apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "shop"), false},
		"no right":      {apierrors.NewForbidden(events, "e", errors.New("RBAC")), true},
	} {
		status := tt.refusal.Status()
		status.APIVersion, status.Kind = "v1", "Status"
		body, err := json.Marshal(status)
		if err != nil {
			t.Fatal(err)
		}
		r := reporterTo(t, &eventServer{status: int(status.Code), body: body}).eventRecorder(reported{})
		var log bytes.Buffer
		r.writer.Log = slog.New(slog.NewTextHandler(&log, nil))
		r.pending = []pendingEvent{{event: &eventsv1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "e"}},
			count: 1}}
		if err := r.send(t.Context()); err != nil || len(r.pending) != 0 {
			t.Errorf("%s: %v, %d Events are left: want it dropped", name, err, len(r.pending))
		}
		if warns := strings.Contains(log.String(), "level=WARN"); warns != tt.warns {
			t.Errorf("%s: warns %t, want %t:\n%s", name, warns, tt.warns, &log)
		}
	}
}
