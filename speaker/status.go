package speaker

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"reflect"
	"time"

	"github.com/cenkalti/backoff/v5"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
)

// reportInterval is the least time between two writes of a SpeakerStatus: with
// 1,000 nodes that all see one change it is 200 writes a second at most, and
// those of one node's sessions that flap do not add up.
const reportInterval = 5 * time.Second

// A Reporter writes the SpeakerStatus of a node when it has changed, beside the
// loop. A nil Reporter does nothing.
type Reporter struct {
	node   string
	client rest.Interface
	log    *slog.Logger
	wake   chan struct{} // capacity 1
}

// NewReporter returns a Reporter for the node. It does not speak with the API
// server yet.
func NewReporter(c *rest.Config, node string, log *slog.Logger) (*Reporter, error) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	conf := rest.CopyConfig(c)
	conf.APIPath, conf.GroupVersion = "/apis", &v1alpha1.GroupVersion
	conf.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	client, err := rest.RESTClientFor(conf)
	if err != nil {
		return nil, fmt.Errorf("SpeakerStatus: %w", err)
	}
	return &Reporter{node: node, client: client, log: log, wake: make(chan struct{}, 1)}, nil
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
	var written *v1alpha1.SpeakerReport
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
		if now := report(&st, time.Now()); written == nil || !reflect.DeepEqual(*written, now) {
			if err := r.write(ctx, now); err != nil {
				r.log.Debug("SpeakerStatus not written", "node", r.node, "err", err)
				pause = retry.NextBackOff()
				r.note()
			} else {
				written = &now
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

// write makes the object what it should be, whether or not it exists: by
// server-side apply, which needs no read before.
func (r *Reporter) write(ctx context.Context, report v1alpha1.SpeakerReport) error {
	report.Changed = metav1.NewTime(time.Now().Truncate(time.Second))
	body, err := json.Marshal(v1alpha1.SpeakerStatus{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "SpeakerStatus"},
		ObjectMeta: metav1.ObjectMeta{Name: r.node},
		Status:     report,
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return r.client.Patch(types.ApplyPatchType).Resource("speakerstatuses").Name(r.node).
		Param("fieldManager", "fanfare-speaker").Param("force", "true").Body(body).Do(ctx).Error()
}
