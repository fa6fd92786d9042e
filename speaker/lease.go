package speaker

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
)

// A Leaser reads and writes the Leases of speakers, one for each node, in the API server.
type Leaser struct {
	namespace string
	client    rest.Interface
}

// NewLeaser returns one for the Leases of a namespace.
func NewLeaser(c *rest.Config, namespace string) (*Leaser, error) {
	scheme := runtime.NewScheme()
	if err := coordinationv1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	metav1.AddToGroupVersion(scheme, coordinationv1.SchemeGroupVersion)
	conf := rest.CopyConfig(c)
	conf.APIPath, conf.GroupVersion = "/apis", &coordinationv1.SchemeGroupVersion
	conf.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	client, err := rest.RESTClientFor(conf)
	if err != nil {
		return nil, fmt.Errorf("leases: %w", err)
	}
	return &Leaser{namespace, client}, nil
}

// leaseOf is the name of a node's Lease. Names of objects have 253 bytes at most, as
// those of nodes.
func leaseOf(node string) string {
	name := "fanfare-speaker-" + node
	if len(name) > 253 {
		name = fmt.Sprintf("%s-%x", name[:230], sha256.Sum256([]byte(node)))[:253]
	}
	return name
}

// renew renews a node's own Lease, and makes it where there is none. The Node is its
// owner, so that it goes with that.
func (l *Leaser) renew(ctx context.Context, node string, uid types.UID, interval time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	name, now := leaseOf(node), metav1.NowMicro()
	seconds := max(int32(leasePatience*interval/time.Second), 1)
	body, err := json.Marshal(map[string]any{"spec": map[string]any{"renewTime": now, "holderIdentity": node, "leaseDurationSeconds": seconds}})
	if err != nil {
		return err
	}
	err = l.client.Patch(types.MergePatchType).Namespace(l.namespace).Resource("leases").Name(name).Body(body).Do(ctx).Error()
	if !apierrors.IsNotFound(err) {
		return err
	}
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: l.namespace, OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node, UID: uid}}},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &node, LeaseDurationSeconds: &seconds, RenewTime: &now},
	}
	return l.client.Post().Namespace(l.namespace).Resource("leases").Body(lease).Do(ctx).Error()
}

// watch calls seen with the renewTime of a node's Lease, first with what it is now,
// until something ends it.
func (l *Leaser) watch(ctx context.Context, node string, seen func(renewal string)) error {
	w, err := l.client.Get().Namespace(l.namespace).Resource("leases").VersionedParams(&metav1.ListOptions{
		Watch: true, FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, leaseOf(node)).String(),
	}, metav1.ParameterCodec).Watch(ctx)
	if err != nil {
		return err
	}
	defer w.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case e, ok := <-w.ResultChan():
			if !ok {
				return errors.New("the watch has ended")
			}
			if e.Type == apiwatch.Error {
				return apierrors.FromObject(e.Object)
			}
			if lease, ok := e.Object.(*coordinationv1.Lease); ok && e.Type != apiwatch.Deleted && lease.Spec.RenewTime != nil {
				seen(lease.Spec.RenewTime.Format(time.RFC3339Nano))
			}
		}
	}
}
