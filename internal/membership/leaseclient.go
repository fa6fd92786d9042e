package membership

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"strconv"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/fanfare-lb/fanfare/internal/apigroup"
)

// leaseTimeout ends a request without an answer.
const leaseTimeout = 10 * time.Second

// A LeaseClient reads and writes the Leases of speakers, one for each node, in the API server.
type LeaseClient struct {
	namespace string
	client    rest.Interface
}

// NewLeaseClient returns a client for the Leases of a namespace, each named after its node.
func NewLeaseClient(c *rest.Config, namespace string) (*LeaseClient, error) {
	client, err := apigroup.Client(c, nil, apigroup.Scheme(coordinationv1.AddToScheme),
		coordinationv1.SchemeGroupVersion)
	if err != nil {
		return nil, fmt.Errorf("leases: %w", err)
	}
	return &LeaseClient{namespace, client}, nil
}

// A Lease has the state of its node for nodes that gossip does not reach.
const (
	// interfacesAnnotation of a speaker's Lease: the node's interfaces and their subnets, in base64.
	interfacesAnnotation = "fanfare.io/interfaces"
	// nodeLabel of a speaker's Lease: a hash of the node's name, so that one watch has the Leases
	// of several nodes. A name may be too long for a label.
	nodeLabel = "fanfare.io/node-hash"
	// releasedAnnotation of a speaker's Lease: changes whenever the node stops answering for an address.
	releasedAnnotation = "fanfare.io/released"
)

// A leaseRecord is the content of a Lease.
type leaseRecord struct {
	renewTime string // compared only for equality: clocks differ
	meta      []byte // nil without the annotation
	released  string
}

// recordOf reads a Lease. An invalid annotation counts as missing.
func recordOf(l *coordinationv1.Lease) leaseRecord {
	r := leaseRecord{renewTime: l.Spec.RenewTime.Format(time.RFC3339Nano), released: l.Annotations[releasedAnnotation]}
	if text, exists := l.Annotations[interfacesAnnotation]; exists {
		r.meta, _ = base64.StdEncoding.DecodeString(text)
	}
	return r
}

func nodeHash(node string) string {
	h := fnv.New64a()
	io.WriteString(h, node)
	return strconv.FormatUint(h.Sum64(), 16)
}

func (r leaseRecord) annotations() map[string]string {
	return map[string]string{
		interfacesAnnotation: base64.StdEncoding.EncodeToString(r.meta), releasedAnnotation: r.released,
	}
}

// renew renews a node's Lease, or creates it. Its owner is the Node, so that it is deleted with
// it.
func (l *LeaseClient) renew(ctx context.Context, node string, uid types.UID, interval time.Duration,
	record leaseRecord) error {
	ctx, cancel := context.WithTimeout(ctx, leaseTimeout)
	defer cancel()
	now := metav1.NowMicro()
	seconds := int32(leaseValidity * max(interval, idleInterval) / time.Second)
	body, err := json.Marshal(map[string]any{
		"metadata": map[string]any{
			"annotations": record.annotations(), "labels": map[string]string{nodeLabel: nodeHash(node)},
		},
		"spec": map[string]any{"renewTime": now, "holderIdentity": node, "leaseDurationSeconds": seconds},
	})
	if err != nil {
		return err
	}
	err = l.client.Patch(types.MergePatchType).Namespace(l.namespace).Resource("leases").Name(node).Body(body).Do(ctx).
		Error()
	if !apierrors.IsNotFound(err) {
		return err
	}
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Name: node, Namespace: l.namespace, Annotations: record.annotations(),
			Labels:          map[string]string{nodeLabel: nodeHash(node)},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node, UID: uid}},
		},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &node, LeaseDurationSeconds: &seconds, RenewTime: &now},
	}
	return l.client.Post().Namespace(l.namespace).Resource("leases").Body(lease).Do(ctx).Error()
}

// watch calls seen with the content of the nodes' Leases, at first the current ones, until the
// watch ends.
func (l *LeaseClient) watch(ctx context.Context, nodes []string, seen func(node string, r leaseRecord)) error {
	var hashes []string
	for _, n := range nodes {
		hashes = append(hashes, nodeHash(n))
	}
	w, err := l.client.Get().Namespace(l.namespace).Resource("leases").VersionedParams(&metav1.ListOptions{
		Watch: true, LabelSelector: fmt.Sprintf("%s in (%s)", nodeLabel, strings.Join(hashes, ",")),
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
			if lease, ok := e.Object.(*coordinationv1.Lease); ok && e.Type != apiwatch.Deleted &&
				lease.Spec.RenewTime != nil {
				seen(lease.Name, recordOf(lease))
			}
		}
	}
}
