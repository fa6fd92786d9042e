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

// herald returns one that tells what is not known.
func (r *Reporter) herald(known told) *herald {
	if r == nil {
		return nil
	}
	return &herald{
		client: r.client, instance: r.node, log: r.log, wake: make(chan struct{}, 1),
		limit: rate.NewLimiter(rate.Every(eventRefill), eventBurst), told: known, recent: map[subject]letter{},
	}
}

// note says that there may be something new to report.
func (r *Reporter) note() {
	if r == nil {
		return
	}
	select {
	case r.wake <- struct{}{}:
	default:
	}
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
		if now := object(&st, &last, time.Now()); now != nil && (time.Since(at) > rewriteInterval || !reflect.DeepEqual(*now, last)) {
			if err := r.write(ctx, now); err != nil {
				why = r.failed(err, why)
				pause = retry.NextBackOff()
				r.note()
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

// object is the SpeakerStatus that says what st says, equal to last if nothing
// has changed since. Its owner is the Node, so that Kubernetes deletes it with
// that. Without a Node, nobody would: then there is none.
func object(st *Status, last *v1alpha1.SpeakerStatus, now time.Time) *v1alpha1.SpeakerStatus {
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
