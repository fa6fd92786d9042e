package membership

import (
	"context"
	"encoding/base64"
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

// leaseTimeout ends a request of which nothing is heard.
const leaseTimeout = 10 * time.Second

// A Leaser reads and writes the Leases of speakers, one for each node, in the API server.
type Leaser struct {
	namespace string
	client    rest.Interface
}

// NewLeaser returns one for the Leases of a namespace, in which each is named after its node.
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

// What a speaker says with its Lease to those who do not hear it.
const (
	// interfacesAnnotation has what encodeInterfaces made, in base64.
	interfacesAnnotation = "fanfare.io/interfaces"
	// releasedAnnotation has another value whenever it has stopped to answer for something.
	releasedAnnotation = "fanfare.io/released"
)

// A bulletin is what is read of a Lease.
type bulletin struct {
	renewal string // when it was renewed; it is only compared with others
	// interfaces are the annotation; nil where there is none, as in earlier releases.
	interfaces []byte
	released   string
}

// bulletinOf reads one. What is not as we write it is not there.
func bulletinOf(l *coordinationv1.Lease) bulletin {
	b := bulletin{renewal: l.Spec.RenewTime.Format(time.RFC3339Nano), released: l.Annotations[releasedAnnotation]}
	if text, there := l.Annotations[interfacesAnnotation]; there {
		b.interfaces, _ = base64.StdEncoding.DecodeString(text)
	}
	return b
}

// annotations are how a bulletin is written.
func (b bulletin) annotations() map[string]string {
	return map[string]string{interfacesAnnotation: base64.StdEncoding.EncodeToString(b.interfaces), releasedAnnotation: b.released}
}

// renew renews a node's own Lease, and makes it where there is none. The Node is its
// owner, so that it goes with that.
func (l *Leaser) renew(ctx context.Context, node string, uid types.UID, interval time.Duration, says bulletin) error {
	ctx, cancel := context.WithTimeout(ctx, leaseTimeout)
	defer cancel()
	now := metav1.NowMicro()
	seconds := max(int32(leasePatience*interval/time.Second), 1)
	body, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"annotations": says.annotations()},
		"spec":     map[string]any{"renewTime": now, "holderIdentity": node, "leaseDurationSeconds": seconds},
	})
	if err != nil {
		return err
	}
	err = l.client.Patch(types.MergePatchType).Namespace(l.namespace).Resource("leases").Name(node).Body(body).Do(ctx).Error()
	if !apierrors.IsNotFound(err) {
		return err
	}
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Name: node, Namespace: l.namespace, Annotations: says.annotations(),
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node, UID: uid}},
		},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &node, LeaseDurationSeconds: &seconds, RenewTime: &now},
	}
	return l.client.Post().Namespace(l.namespace).Resource("leases").Body(lease).Do(ctx).Error()
}

// watch calls seen with what a node's Lease says, first with what it does now, until
// something ends it.
func (l *Leaser) watch(ctx context.Context, node string, seen func(bulletin)) error {
	w, err := l.client.Get().Namespace(l.namespace).Resource("leases").VersionedParams(&metav1.ListOptions{
		Watch: true, FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, node).String(),
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
				seen(bulletinOf(lease))
			}
		}
	}
}
