package speaker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"time"

	"github.com/cenkalti/backoff/v5"
	"golang.org/x/time/rate"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
	"github.com/fanfare-lb/fanfare/bgp"
	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// reportInterval is the least time between two writes of a SpeakerStatus: with
// 1,000 nodes that all see one change it is 200 writes a second at most, and
// those of one node's sessions that flap do not add up.
const reportInterval = 5 * time.Second

// rewriteInterval is after how long the same is written again: somebody may have
// deleted it, or the garbage collector, late, for a former Node of this name.
const rewriteInterval = 10 * time.Minute

// requestTimeout ends a request of which nothing is heard.
const requestTimeout = 10 * time.Second

// A client writes what a speaker writes to the API server, and reads nothing.
type client struct {
	ours, events rest.Interface
}

// newClient uses a scheme of its own: client-go's knows all of Kubernetes, at a
// price in memory on every node.
func newClient(c *rest.Config) (*client, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(v1alpha1.AddToScheme(scheme), eventsv1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	of := func(gv schema.GroupVersion) (rest.Interface, error) {
		conf := rest.CopyConfig(c)
		conf.APIPath, conf.GroupVersion = "/apis", &gv
		conf.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
		return rest.RESTClientFor(conf)
	}
	ours, err := of(v1alpha1.GroupVersion)
	if err != nil {
		return nil, err
	}
	events, err := of(eventsv1.SchemeGroupVersion)
	return &client{ours, events}, err
}

// apply makes a SpeakerStatus what it should be, whether or not it exists: by
// server-side apply, which needs no read before.
func (c *client) apply(ctx context.Context, o *v1alpha1.SpeakerStatus) error {
	body, err := json.Marshal(o)
	if err != nil {
		return err
	}
	return c.ours.Patch(types.ApplyPatchType).Resource("speakerstatuses").Name(o.Name).
		Param("fieldManager", "fanfare-speaker").Param("force", "true").Body(body).Do(ctx).Error()
}

func (c *client) createEvent(ctx context.Context, e *eventsv1.Event) error {
	return c.events.Post().Namespace(e.Namespace).Resource("events").Body(e).Do(ctx).Error()
}

// repeatEvent says of an Event that was written that it happened again.
func (c *client) repeatEvent(ctx context.Context, e *eventsv1.Event, s eventsv1.EventSeries) error {
	body, err := json.Marshal(map[string]any{"series": s})
	if err != nil {
		return err
	}
	return c.events.Patch(types.MergePatchType).Namespace(e.Namespace).Resource("events").Name(e.Name).Body(body).Do(ctx).Error()
}

// A Reporter says to the API server what a speaker does: by a SpeakerStatus, and
// by Events. A nil Reporter does nothing.
type Reporter struct {
	node   string
	client *client
	log    *slog.Logger
	wake   chan struct{} // capacity 1
}

// NewReporter returns a Reporter for the node. It does not speak with the API
// server yet.
func NewReporter(c *rest.Config, node string, log *slog.Logger) (*Reporter, error) {
	client, err := newClient(c)
	if err != nil {
		return nil, fmt.Errorf("SpeakerStatus and Events: %w", err)
	}
	return &Reporter{node: node, client: client, log: log, wake: make(chan struct{}, 1)}, nil
}

// eventRecorder returns one that tells what is not known.
func (r *Reporter) eventRecorder(known reported) *eventRecorder {
	if r == nil {
		return nil
	}
	return &eventRecorder{
		client: r.client, instance: r.node, log: r.log, wake: make(chan struct{}, 1),
		limit: rate.NewLimiter(rate.Every(eventRefill), eventBurst), reported: known, recent: map[seriesKey]pendingEvent{},
	}
}

// trigger says that there may be something new to report.
func (r *Reporter) trigger() {
	if r == nil {
		return
	}
	notify(r.wake)
}

// run reports until ctx ends. While the API server is away it tries again, ever
// more seldom; nothing else waits for it.
func (r *Reporter) run(ctx context.Context, status func() Status) {
	if r == nil {
		return
	}
	var last v1alpha1.SpeakerStatus
	var at time.Time // when last was written; zero before
	var why string   // the last attempt failed
	retry := &backoff.ExponentialBackOff{InitialInterval: reportInterval, RandomizationFactor: 0.2, Multiplier: 2, MaxInterval: 2 * time.Minute}
	retry.Reset()
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.wake:
		}
		pause := reportInterval
		st := status()
		if now := speakerStatus(&st, &last, time.Now()); now != nil && (time.Since(at) > rewriteInterval || !reflect.DeepEqual(*now, last)) {
			if err := r.write(ctx, now); err != nil {
				why = r.failed(err, why)
				pause = retry.NextBackOff()
				r.trigger()
			} else {
				last, at, why = *now, time.Now(), ""
				retry.Reset()
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// failed logs why a SpeakerStatus was not written, and returns it. What the API
// server refuses somebody has to mend, and is told so once: server-side apply
// takes no field that the CRD does not have. That it is away is said elsewhere.
func (r *Reporter) failed(err error, before string) (why string) {
	level := slog.LevelDebug
	if refused := apierrors.APIStatus(nil); errors.As(err, &refused) && err.Error() != before {
		level = slog.LevelWarn
	}
	r.log.Log(context.Background(), level, "SpeakerStatus not written; if its CRD is older than this speaker, apply manifests/crds", "node", r.node, "err", err)
	return err.Error()
}

// speakerStatus is the SpeakerStatus that says what st says, equal to last if nothing
// has changed since. Its owner is the Node, so that Kubernetes deletes it with
// that. Without a Node, nobody would: then there is none.
func speakerStatus(st *Status, last *v1alpha1.SpeakerStatus, now time.Time) *v1alpha1.SpeakerStatus {
	if st.NodeUID == "" {
		return nil
	}
	o := &v1alpha1.SpeakerStatus{
		TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "SpeakerStatus"},
		ObjectMeta: metav1.ObjectMeta{Name: st.Node, OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "v1", Kind: "Node", Name: st.Node, UID: st.NodeUID},
		}},
		Status: report(st, now),
	}
	o.Status.Changed = last.Status.Changed
	if !reflect.DeepEqual(*o, *last) {
		o.Status.Changed = metav1.NewTime(now.Truncate(time.Second))
	}
	return o
}

func (r *Reporter) write(ctx context.Context, o *v1alpha1.SpeakerStatus) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return r.client.apply(ctx, o)
}

// maxError is the length to which an error is cut in a report.
const maxError = 4096

// maxInterfaces and maxPrefixes, of each, are what the CRD takes.
const (
	maxInterfaces = 64
	maxPrefixes   = 32
)

// report is what of a Status goes to the API server: bounded, and without what
// changes all the time.
func report(st *Status, now time.Time) v1alpha1.SpeakerReport {
	r := v1alpha1.SpeakerReport{
		Version:   st.Version,
		Repairs:   int64(st.Proxy.Repairs),
		Error:     st.Error[:min(len(st.Error), maxError)],
		Attention: int32(len(st.Attention(now))),
	}
	r.Members = st.Members.Summary()
	up := 0
	for _, s := range st.BGP.Sessions {
		r.Sessions = append(r.Sessions, sessionReport(s))
		if s.State == bgp.Established {
			up++
		}
	}
	r.Established = fmt.Sprintf("%d/%d", up, len(st.BGP.Sessions))
	for i := range st.Addresses {
		count(&r.Addresses, &st.Addresses[i], up > 0)
	}
	r.Interfaces = interfaceReports(st)
	r.Reasons = reasons(st)
	return r
}

// interfaceReports are of those that matter to any address: of a node with hundreds, most
// are pods'.
func interfaceReports(st *Status) (out []v1alpha1.SpeakerInterface) {
	for _, i := range st.L2.Interfaces {
		if len(out) == maxInterfaces {
			break
		}
		r := v1alpha1.SpeakerInterface{Name: i.Name, MAC: i.MAC.String()}
		for _, p := range i.Prefixes[:min(len(i.Prefixes), maxPrefixes)] {
			r.Prefixes = append(r.Prefixes, p.String())
		}
		out = append(out, r)
	}
	return out
}

func sessionReport(s bgp.SessionStatus) v1alpha1.SpeakerSession {
	out := v1alpha1.SpeakerSession{
		Name: s.Name, Address: s.Router(), ASN: int64(s.PeerASN), State: string(s.State),
		Since: metav1.NewTime(s.Since.Truncate(time.Second)), Routes: int32(s.Advertised),
	}
	if s.BFD != nil {
		out.BFD = s.BFD.Summary()
	}
	if s.State != bgp.Established {
		// On the way up a session passes through several states in milliseconds, and
		// back. To people and to the API server it is down all the while.
		out.State, out.Error = "Down", s.Trouble()
	}
	return out
}

func count(c *v1alpha1.SpeakerAddresses, a *AddressStatus, heard bool) {
	if len(a.Services) > 0 {
		c.Assigned++
	}
	if a.Programmed {
		c.Forwarded++
	}
	if a.Announced && heard || a.Answered() {
		c.Announced++
	}
	if a.Lingering != nil {
		c.Lingering++
	}
}

// reasons are the first of what is in the way on the node, of what is wrong with objects, of Services without an
// address, and of addresses that are not served as asked.
func reasons(st *Status) (out []v1alpha1.SpeakerReason) {
	add := func(r v1alpha1.SpeakerReason) bool {
		if len(out) < v1alpha1.MaxSpeakerReasons {
			out = append(out, r)
		}
		return len(out) < v1alpha1.MaxSpeakerReasons
	}
	for _, o := range st.Proxy.Obstacles {
		add(v1alpha1.SpeakerReason{Code: string(o.Code), Message: o.Message})
	}
	for _, p := range st.Problems {
		add(v1alpha1.SpeakerReason{Code: "Problem", Message: p.String()})
	}
	for _, p := range st.L2.Problems {
		add(v1alpha1.SpeakerReason{Code: "Problem", Message: p.Message})
	}
	for _, p := range st.BGP.Problems {
		add(v1alpha1.SpeakerReason{Code: "Problem", Message: p})
	}
	if st.Members != nil {
		for _, p := range st.Members.Problems {
			add(v1alpha1.SpeakerReason{Code: "Problem", Message: "members: " + p})
		}
	}
	for _, r := range st.Waiting {
		add(v1alpha1.SpeakerReason{Service: r.Service, Code: string(r.Code), Message: r.Message})
	}
	for _, a := range st.Addresses {
		for _, r := range a.Reasons {
			if r.Code == cluster.Programmed || r.Code == cluster.Announced || r.Code == cluster.AnotherNode {
				continue
			}
			if !add(v1alpha1.SpeakerReason{Address: a.Address.String(), Service: r.Service, Code: string(r.Code), Message: r.Message}) {
				return out
			}
		}
	}
	return out
}
