package controller

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// Reasons of an L2Advertisement's condition, besides those of pools.
const (
	reasonNoNode      = "NoNode"
	reasonNoSpeaker   = "NoSpeaker"
	reasonNoInterface = "NoInterface"
)

// adverts keeps the status of L2Advertisements. Only who sees all nodes can tell whether
// a selector or an interface is misspelt.
type adverts struct {
	client  *client
	written map[string]writtenAdvert // by name
	at      time.Time                // when they were last looked at
	due     bool                     // it was too early the last time
}

// A writtenAdvert is what stands in a status, as far as known.
type writtenAdvert struct {
	uid    types.UID
	status v1alpha1.L2AdvertisementStatus
}

// report writes what has changed, unless it is too early. Before the nodes have been read
// there is nothing to say.
func (a *adverts) report(ctx context.Context, snap *cluster.Snapshot) (errs []error) {
	if !snap.L2Ready || len(snap.L2Advertisements)+len(a.written) == 0 {
		a.due = false
		return nil
	}
	if a.due = time.Since(a.at) < poolInterval; a.due {
		return nil
	}
	a.at = time.Now()
	there := map[string]bool{}
	for _, l := range snap.L2Advertisements {
		there[l.Name] = true
		want := advertStatus(snap, l)
		have, ok := a.written[l.Name]
		if ok && have.uid == l.UID && sameAdvert(have.status, want) {
			continue
		}
		if err := a.write(ctx, l.Name, want); err != nil {
			errs = append(errs, fmt.Errorf("status of L2Advertisement %s: %w", l.Name, err))
			continue
		}
		a.written[l.Name] = writtenAdvert{l.UID, want}
	}
	maps.DeleteFunc(a.written, func(name string, _ writtenAdvert) bool { return !there[name] })
	return errs
}

// write writes a status if it is not there already. One whose object is gone meanwhile is
// no error.
func (a *adverts) write(ctx context.Context, name string, want v1alpha1.L2AdvertisementStatus) error {
	live, err := a.client.l2Advertisement(ctx, name)
	if err == nil && !sameAdvert(live.Status, want) {
		keepTime(live.Status.Conditions, want.Conditions)
		err = a.client.patchL2Advertisement(ctx, name, want)
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// sameAdvert says whether two statuses say the same, whenever they began to.
func sameAdvert(x, y v1alpha1.L2AdvertisementStatus) bool {
	x, y = *x.DeepCopy(), *y.DeepCopy()
	for _, s := range []v1alpha1.L2AdvertisementStatus{x, y} {
		for i := range s.Conditions {
			s.Conditions[i].LastTransitionTime = metav1.Time{}
		}
	}
	return reflect.DeepEqual(x, y)
}

// advertStatus is what the status shall be.
func advertStatus(snap *cluster.Snapshot, l *cluster.L2Advertisement) v1alpha1.L2AdvertisementStatus {
	r := reach(snap, l)
	c := metav1.Condition{Type: ready, Status: metav1.ConditionFalse, LastTransitionTime: metav1.Now()}
	var wrong []string
	for _, problem := range snap.Problems {
		if problem.Object == "L2Advertisement "+l.Name {
			wrong = append(wrong, problem.String())
		}
	}
	switch {
	case len(wrong) != 0:
		c.Reason, c.Message = reasonFaulty, cut(strings.Join(wrong, "; "))
	case r.selected == 0:
		c.Reason, c.Message = reasonNoNode, fmt.Sprintf("nodeSelector %s matches none of %d nodes", l.NodeSelector, len(snap.Nodes))
	case r.heard == 0:
		c.Reason, c.Message = reasonNoSpeaker, fmt.Sprintf("no speaker of the %d selected nodes has told of its interfaces yet", r.selected)
	case r.able == 0 && len(l.Interfaces) == 0:
		c.Reason, c.Message = reasonNoInterface, "no selected node has an interface in a subnet that has addresses of a pool"
	case r.able == 0:
		c.Reason, c.Message = reasonNoInterface, "no selected node has one of its interfaces: "+r.missing()
	default:
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, reasonReady, cut(strings.Join(append([]string{"nodes can answer"}, r.remarks(l)...), "; "))
	}
	return v1alpha1.L2AdvertisementStatus{Nodes: int32(r.able), Conditions: []metav1.Condition{c}}
}

// A coverage is whom an L2Advertisement reaches.
type coverage struct {
	selected, heard, able int             // nodes
	unmet                 map[string]bool // interfaces that no selected node has, in the words of the object
	order                 []string        // of interfaces
	preferred             []int           // how many selected nodes each of the preferences selects
}

func reach(snap *cluster.Snapshot, l *cluster.L2Advertisement) coverage {
	r := coverage{unmet: map[string]bool{}, order: l.Interfaces, preferred: make([]int, len(l.Preferred))}
	for _, name := range l.Interfaces {
		r.unmet[name] = true
	}
	for _, n := range snap.Nodes {
		if !l.NodeSelector.Matches(n.Labels) {
			continue
		}
		r.selected++
		for i, p := range l.Preferred {
			if p.Selector.Matches(n.Labels) {
				r.preferred[i]++
			}
		}
		if s := speakerOf(snap, n.Name); s != nil && len(s.Interfaces) != 0 {
			r.heard++
			r.count(l, s)
		}
	}
	return r
}

// count adds a node that a speaker has told of.
func (r *coverage) count(l *cluster.L2Advertisement, s *cluster.Speaker) {
	able := false
	for _, i := range s.Interfaces {
		ok, _ := l.Allows(i.Name)
		able = able || ok
		for name := range r.unmet {
			one := cluster.L2Advertisement{Interfaces: []string{name}}
			if is, _ := one.Allows(i.Name); is {
				delete(r.unmet, name)
			}
		}
	}
	if able {
		r.able++
	}
}

// missing lists the interfaces that no selected node has. Of those that match a pattern
// speakers only tell where they are in a subnet of a pool.
func (r *coverage) missing() string {
	var list []string
	for _, name := range r.order {
		if !r.unmet[name] {
			continue
		}
		if strings.ContainsAny(name, "*?") {
			name += " (in a subnet that has addresses of a pool)"
		}
		list = append(list, name)
	}
	return strings.Join(list, ", ")
}

// remarks are what is not as it was meant, although some node can answer.
func (r *coverage) remarks(l *cluster.L2Advertisement) (list []string) {
	if missing := r.missing(); missing != "" {
		list = append(list, "no selected node has an interface "+missing)
	}
	for i, n := range r.preferred {
		if n == 0 {
			list = append(list, fmt.Sprintf("preferredNodeSelectors[%d], %s, matches none of the %d selected nodes", i, l.Preferred[i].Selector, r.selected))
		}
	}
	return list
}
