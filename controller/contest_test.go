package controller

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/testing/bubble"
)

// A rival overwrites the status of the Service web whenever that is not as the rival wants it, at
// once.
type rival struct {
	*store
	want func(*corev1.Service)
	// rewrites are the times at which the controller wrote the Service's address back.
	rewrites []time.Time
	changed  chan struct{} // for the controller
	react    chan struct{} // for the rival
}

// newRival returns a rival of a controller that runs, in a bubble, in a cluster with a pool of one
// address, which the Service web has and wants to keep.
func newRival(t *testing.T, want func(*corev1.Service)) *rival {
	r := &rival{store: newStore(t), want: want, changed: make(chan struct{}, 1), react: make(chan struct{}, 1)}
	w := &world{store: r.store}
	w.setPool("dmz", 1)
	svc := w.service("web")
	svc.Annotations = map[string]string{cluster.ReserveAnnotation: "true"}
	r.put(servicesPath+"web", nil, from(t, svc))
	c := start(t, r.store, nil)
	r.settleAll(t, c)
	r.put(servicesPath+"other", nil, from(t, w.service("other")))
	r.settleAll(t, c)
	r.wrote = r.notify
	c.source = r
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		c.lead(ctx)
		close(done)
	}()
	go r.run(ctx)
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return r
}

func (r *rival) Changed() <-chan struct{} { return r.changed }

func (r *rival) Snapshot() *cluster.Snapshot {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.source().Snapshot()
}

func (r *rival) notify(path string, before, after object) {
	if path == servicesPath+"web" && after != nil &&
		slices.Equal(addrs(into[corev1.Service](r.t, after)), []string{"192.0.3.1"}) &&
		!slices.Equal(addrs(into[corev1.Service](r.t, before)), []string{"192.0.3.1"}) {
		r.rewrites = append(r.rewrites, time.Now())
	}
	for _, to := range []chan struct{}{r.changed, r.react} {
		select {
		case to <- struct{}{}:
		default:
		}
	}
}

// overwrite is what the rival does.
func (r *rival) overwrite() {
	r.mu.Lock()
	defer r.mu.Unlock()
	old := r.objects[servicesPath+"web"]
	if old == nil {
		return
	}
	svc := into[corev1.Service](r.t, old)
	r.want(&svc)
	r.put(servicesPath+"web", old, from(r.t, svc))
}

// run reacts to every change.
func (r *rival) run(ctx context.Context) {
	for {
		r.overwrite()
		select {
		case <-ctx.Done():
			return
		case <-r.react:
		}
	}
}

// fight lets both act for a while.
func (r *rival) fight(d time.Duration) {
	time.Sleep(d)
	bubble.Wait()
}

// edit does what a user does.
func (r *rival) edit(do func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	do()
}

// Another controller that overwrites the status all the time takes no address away, and is not fought
// at full speed for ever.
func TestContest(t *testing.T) {
	say := func(ingress ...corev1.LoadBalancerIngress) func(*corev1.Service) {
		return func(s *corev1.Service) { s.Status.LoadBalancer.Ingress = ingress }
	}
	vip, proxy := corev1.LoadBalancerIPModeVIP, corev1.LoadBalancerIPModeProxy
	for name, tt := range map[string]struct {
		want func(*corev1.Service)
		says string
	}{
		"address": {say(corev1.LoadBalancerIngress{IP: "203.0.113.9", IPMode: &vip}),
			"another controller wrote 203.0.113.9 into status.loadBalancer"},
		"address beside ours": {say(corev1.LoadBalancerIngress{IP: "192.0.3.1"},
			corev1.LoadBalancerIngress{IP: "203.0.113.9"}), "wrote 203.0.113.9 into"},
		"host name": {say(corev1.LoadBalancerIngress{Hostname: "lb.example.com"}),
			"wrote host name lb.example.com into"},
		"host name with our own": {say(corev1.LoadBalancerIngress{IP: "192.0.3.1", Hostname: "lb.example.com"}),
			"wrote host name lb.example.com into"},
		"ipMode": {say(corev1.LoadBalancerIngress{IP: "192.0.3.1", IPMode: &proxy}),
			"wrote ipMode Proxy into"},
		"nothing": {say(), "another controller changes status.loadBalancer"},
		"whole status": {func(s *corev1.Service) {
			s.Status = corev1.ServiceStatus{}
			say(corev1.LoadBalancerIngress{IP: "203.0.113.9"})(s)
		}, "wrote 203.0.113.9 into"},
		"addresses of 1,000 nodes": {say(nodeAddresses(1000)...),
			"wrote 10.0.0.0, 10.0.0.1, 10.0.0.2, 10.0.0.3 and 996 more into"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) { testContest(t, tt.want, tt.says) })
		})
	}
}

func nodeAddresses(n int) (all []corev1.LoadBalancerIngress) {
	for i := range n {
		all = append(all, corev1.LoadBalancerIngress{IP: fmt.Sprintf("10.0.%d.%d", i/256, i%256)})
	}
	return all
}

func testContest(t *testing.T, want func(*corev1.Service), says string) {
	r := newRival(t, want)
	began, before := time.Now(), 0
	r.edit(func() { before = len(r.log) })
	r.fight(time.Hour)
	minute, rest := 0, 0
	for i := range r.log[before:] {
		if path := r.log[before+i].path; strings.Contains(path, "/services/web") {
			rest++
		}
	}
	for _, at := range r.rewrites {
		if at.Sub(began) < time.Minute {
			minute++
		}
	}
	t.Logf("written %d times by both, %d times back: %v", rest, len(r.rewrites), r.rewrites)
	if rest > 2*(rewriteBurst+6)+2 {
		t.Errorf("the Service was written %d times in an hour, by both", rest)
	}
	if len(r.rewrites) > 0 && (minute != rewriteBurst || len(r.rewrites) < rewriteBurst+5) {
		t.Errorf("written back %d times in a minute and %d times in an hour: %v", minute, len(r.rewrites), r.rewrites)
	}
	claim, held := r.claim(t, "192.0.3.1")
	if !held || len(claim.Spec.Holders) != 1 || claim.Spec.Holders[0].Name != "web" {
		t.Errorf("claim %v, want one of web", claim.Spec)
	}
	if cond := r.get(t, "other").Status.Conditions; len(cond) != 1 || cond[0].Status != "False" {
		t.Errorf("other: %v, want no address", cond)
	}
	var overwritten int
	for _, e := range r.store.events(t) {
		if strings.HasPrefix(e, "Warning StatusOverwritten web: has 192.0.3.1 of pool dmz; ") {
			overwritten++
			if !strings.Contains(e, says) || !strings.Contains(e, "switch that controller off") {
				t.Errorf("Event %q, want %q", e, says)
			}
		}
	}
	if overwritten == 0 || overwritten > 2 && r.get(t, "web").Status.Conditions != nil {
		t.Errorf("%d Events, want one, and another one when the controller retries rarely: %q", overwritten,
			r.store.events(t))
	}

	r.edit(func() { r.want = func(*corev1.Service) {} }) // the other controller is switched off
	r.fight(rewriteRarely + rewriteMemory + time.Minute)
	web := r.get(t, "web")
	if in := web.Status.LoadBalancer.Ingress; len(in) != 1 || in[0].IP != "192.0.3.1" || in[0].Hostname != "" ||
		*in[0].IPMode != corev1.LoadBalancerIPModeVIP {
		t.Errorf("status %v, want the Service's address with ipMode VIP", in)
	}
	if cond := web.Status.Conditions; len(cond) != 1 || cond[0].Reason != string(cluster.Assigned) {
		t.Errorf("condition %v, want Assigned once the contest is over", cond)
	}
	r.edit(func() { r.remove(servicesPath + "web") })
	r.fight(time.Minute)
	if claim, held = r.claim(t, "192.0.3.1"); !held || len(claim.Spec.ReservedFor) != 1 {
		t.Errorf("claim %v, want it reserved for web", claim.Spec)
	}
}

// A Service may be deleted while its status says something else: it keeps its reservation. And a
// request of a user is not delayed by a contest.
func TestContestDelaysNoUser(t *testing.T) {
	want := func(s *corev1.Service) {
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.9"}}
	}
	bubble.Test(t, func(t *testing.T) {
		r := newRival(t, want)
		r.fight(5 * time.Minute)
		annotate := func(annotations map[string]string) {
			svc := r.get(t, "web")
			svc.Annotations = annotations
			r.put(servicesPath+"web", r.objects[servicesPath+"web"], from(t, svc))
		}
		r.edit(func() {
			(&world{store: r.store}).setPool("lan", 4)
			annotate(map[string]string{"fanfare.io/load-balancer-ips": "192.0.2.3"})
		})
		r.fight(5 * time.Second)
		if claim, held := r.claim(t, "192.0.2.3"); !held || claim.Spec.Holders[0].Name != "web" {
			t.Errorf("claim %v, want the requested address claimed at once", claim.Spec)
		}
		r.edit(func() { annotate(map[string]string{cluster.ReserveAnnotation: "true"}) })
		r.fight(5 * time.Second)
		r.edit(func() { r.remove(servicesPath + "web") })
		r.fight(time.Minute)
		if claim, held := r.claim(t, "192.0.2.3"); !held || len(claim.Spec.ReservedFor) != 1 {
			t.Errorf("claim %v, want it reserved for web, which was deleted in the contest", claim.Spec)
		}
	})
}
