package kube

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
	"github.com/fanfare-lb/fanfare/e2e/bench/measure"
	"github.com/fanfare-lb/fanfare/e2e/lab"
)

// aggregate announces all addresses of the benchmark by one route.
var aggregate = fmt.Sprintf(`
apiVersion: fanfare.io/v1alpha1
kind: BGPAdvertisement
metadata: {name: bench}
spec: {pools: [bench], aggregationLength: %d}
`, netip.MustParsePrefix(prefix).Bits())

// An aggregated holds the measurements of creating a Service whose address is part of an
// announced aggregate. Times start at the request.
type aggregated struct {
	Rules  measure.Sample // the address is in the kernel of Fanfare's node
	Answer measure.Sample // a client behind the router has the first answer
}

// createAggregated measures with an aggregate, which the background Services keep
// announced.
func (b *bench) createAggregated(ctx context.Context, repeats int) (a aggregated, err error) {
	if b.background == 0 {
		return a, errors.New("BUG: without background Services nothing announces the aggregate")
	}
	if err := errors.Join(b.Cluster.PutText("aggregate", aggregate),
		b.Cluster.PutText("bench", pool("Advertised"))); err != nil {
		return a, err
	}
	defer func() { err = errors.Join(err, b.endAggregate(context.WithoutCancel(ctx))) }()
	if err := b.Router.AwaitVia(ctx, eventLimit, netip.MustParsePrefix(prefix), fanfareNode); err != nil {
		return a, err
	}
	if err := errors.Join(b.awaitRoutes(ctx, 0, 0), b.awaitClaims(ctx, "Advertised")); err != nil {
		return a, err
	}
	for range repeats {
		if err := b.quiet(ctx); err != nil {
			return a, err
		}
		if err := b.createOneAggregated(ctx, &a); err != nil {
			return a, err
		}
	}
	return a, nil
}

// endAggregate withdraws the aggregate and waits until the router has all host routes
// again.
func (b *bench) endAggregate(ctx context.Context) error {
	if err := errors.Join(b.Cluster.PutText("bench", pool("BGP")), b.Cluster.Delete("aggregate")); err != nil {
		return err
	}
	if err := errors.Join(b.awaitRoutes(ctx, b.background, 1), b.awaitClaims(ctx, "BGP")); err != nil {
		return err
	}
	return b.Router.AwaitVia(ctx, eventLimit, netip.MustParsePrefix(prefix))
}

// awaitClaims returns when all claims say how their pool is announced: the controller rewrites them
// after the pool has changed, and new Services share its time with that.
func (b *bench) awaitClaims(ctx context.Context, announce string) error {
	kind := v1alpha1.GroupVersion.WithKind("AddressClaim")
	return lab.Await(ctx, eventLimit, "claims with announce "+announce, func() error {
		list, err := b.Kubernetes.Admin().List(ctx, kind)
		if err != nil {
			return err
		}
		for _, o := range list {
			if got, _, _ := unstructured.NestedString(o.Object, "spec", "announce"); got != announce {
				return fmt.Errorf("%s has %s", o.GetName(), got)
			}
		}
		return nil
	})
}

func (b *bench) createOneAggregated(ctx context.Context, a *aggregated) (err error) {
	ctx, cancel := context.WithTimeout(ctx, eventLimit)
	defer cancel()
	b.created++
	name := newName(b.created)
	if err := b.api.createSlice(ctx, newSlice(name, realPod("p11"))); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.deleteService(context.WithoutCancel(ctx), name)) }()
	began := time.Now()
	if _, err := b.api.createService(ctx, newService(name)); err != nil {
		return err
	}
	_, vip, answered, err := b.firstAnswer(ctx, name)
	if err != nil {
		return err
	}
	var rules time.Time
	err = lab.Await(ctx, eventLimit, "the observer's events of "+name, func() error {
		if rules = b.Observer.RuleSince(fanfareNode, vip, began); rules.IsZero() {
			return errors.New("no rule in the kernel")
		}
		return nil
	})
	a.Rules, a.Answer = append(a.Rules, rules.Sub(began)), append(a.Answer, answered.Sub(began))
	return err
}
