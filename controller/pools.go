package controller

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/ipam"
)

// poolInterval is how often pools are written at most. Every Service that comes
// or goes changes their counts, and nobody looks that often.
const poolInterval = time.Second

// ready is the condition of pools. Reasons are those of Services where there are
// any, and these.
const (
	ready        = "Ready"
	reasonReady  = "Ready"
	reasonDrain  = "Drained"
	reasonFaulty = "Invalid"
)

// pools keeps the status of AddressPools. The snapshot does not have it: each
// count that changes would else look to every node like another pool.
type pools struct {
	client  *client
	written map[string]writtenPool // by name
	at      time.Time              // when pools were last looked at
	due     bool                   // it was too early the last time
}

// A writtenPool is what stands in a pool's status, as far as known.
type writtenPool struct {
	created time.Time // tells the pool from a later one of the same name, whose status is empty
	status  v1alpha1.AddressPoolStatus
}

// report writes what has changed, unless it is too early.
func (p *pools) report(ctx context.Context, snap *cluster.Snapshot, assignments []cluster.Assignment) (errs []error) {
	if p.due = time.Since(p.at) < poolInterval; p.due {
		return nil
	}
	p.at = time.Now()
	statuses := poolStatuses(snap, assignments)
	maps.DeleteFunc(p.written, func(name string, _ writtenPool) bool { _, ok := statuses[name]; return !ok })
	for _, pool := range snap.Pools {
		want := statuses[pool.Name]
		have, ok := p.written[pool.Name]
		if ok && have.created.Equal(pool.Created) && equal(have.status, want) {
			continue
		}
		if err := p.write(ctx, pool.Name, want); err != nil {
			errs = append(errs, fmt.Errorf("status of pool %s: %w", pool.Name, err))
			continue
		}
		p.written[pool.Name] = writtenPool{pool.Created, want}
	}
	return errs
}

// write writes a status if it is not there already. One that lost its pool
// meanwhile is no error.
func (p *pools) write(ctx context.Context, name string, want v1alpha1.AddressPoolStatus) error {
	live, err := p.client.pool(ctx, name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil || equal(live.Status, want) {
		return err
	}
	keepTime(live.Status.Conditions, want.Conditions)
	err = p.client.patchPool(ctx, name, want)
	if apierrors.IsNotFound(err) {
		return p.missing(ctx, name)
	}
	return err
}

// missing tells a pool that is gone, which is no error, from one whose CRD is of
// a version that had no status.
func (p *pools) missing(ctx context.Context, name string) error {
	if _, err := p.client.pool(ctx, name); err != nil {
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	}
	return errors.New("its CRD has none, and is older than this controller; apply manifests/crds")
}

// keepTime leaves the time of a condition that has not changed its status.
func keepTime(old, now []metav1.Condition) {
	for i := range now {
		for _, o := range old {
			if o.Type == now[i].Type && o.Status == now[i].Status {
				now[i].LastTransitionTime = o.LastTransitionTime
			}
		}
	}
}

// equal says whether two statuses say the same, whenever they began to.
func equal(a, b v1alpha1.AddressPoolStatus) bool { return reflect.DeepEqual(timeless(a), timeless(b)) }

func timeless(s v1alpha1.AddressPoolStatus) v1alpha1.AddressPoolStatus {
	s = *s.DeepCopy()
	for i := range s.Conditions {
		s.Conditions[i].LastTransitionTime = metav1.Time{}
	}
	return s
}

// poolStatuses is what the status of each pool shall be.
func poolStatuses(snap *cluster.Snapshot, assignments []cluster.Assignment) map[string]v1alpha1.AddressPoolStatus {
	assigned := map[netip.Addr]bool{}
	used := tally{}
	for _, a := range assignments {
		if !assigned[a.Addr] { // Services may share it.
			used.add(a.Pool, a.Addr, true)
		}
		assigned[a.Addr] = true
	}
	for _, c := range snap.Claims {
		if !assigned[c.Addr] {
			used.add(cluster.PoolOf(snap.Pools, c.Addr), c.Addr, false)
		}
	}
	out := make(map[string]v1alpha1.AddressPoolStatus, len(snap.Pools))
	for _, p := range snap.Pools {
		s := v1alpha1.AddressPoolStatus{IPv4: used.of(p, corev1.IPv4Protocol), IPv6: used.of(p, corev1.IPv6Protocol)}
		s.Conditions = []metav1.Condition{poolReady(p, s, snap.Problems)}
		out[p.Name] = s
	}
	return out
}

// A tally counts the addresses of each pool and family that are assigned, and
// those that are only claimed.
type tally map[poolFamily]struct{ assigned, claimed int64 }

type poolFamily struct {
	pool   string
	family corev1.IPFamily
}

func (t tally) add(pool string, a netip.Addr, assigned bool) {
	k := poolFamily{pool, cluster.FamilyOf(a)}
	n := t[k]
	if assigned {
		n.assigned++
	} else {
		n.claimed++
	}
	t[k] = n
}

// of is nil when the pool has no addresses of the family.
func (t tally) of(p *cluster.Pool, f corev1.IPFamily) *v1alpha1.PoolAddresses {
	total := ipam.Count(p, f)
	if total == 0 {
		return nil
	}
	n := t[poolFamily{p.Name, f}]
	return &v1alpha1.PoolAddresses{Total: total, Assigned: n.assigned, Available: max(0, total-n.assigned-n.claimed)}
}

// poolReady says whether a Service may get an address of the pool.
func poolReady(p *cluster.Pool, s v1alpha1.AddressPoolStatus, problems []cluster.Problem) metav1.Condition {
	c := metav1.Condition{Type: ready, Status: metav1.ConditionFalse, LastTransitionTime: metav1.Now()}
	var wrong []string
	for _, problem := range problems {
		if problem.Object == "AddressPool "+p.Name {
			wrong = append(wrong, problem.String())
		}
	}
	full := (s.IPv4 == nil || s.IPv4.Available == 0) && (s.IPv6 == nil || s.IPv6.Available == 0)
	switch {
	case len(wrong) != 0:
		c.Reason, c.Message = reasonFaulty, cut(strings.Join(wrong, "; "))
	case p.Allocation == cluster.Drained:
		c.Reason, c.Message = reasonDrain, "gives out no more addresses; those that Services have stay"
	case full:
		c.Reason, c.Message = string(cluster.PoolExhausted), "every address is taken; add addresses"
	default:
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, reasonReady, "has addresses to give"
		if p.Allocation == cluster.OnRequest {
			c.Message += " to Services that ask for them"
		}
	}
	return c
}
