package controller

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// populate makes pools with fewer addresses than there are Services, and
// Services that have an address from before there was a controller.
func (w *world) populate() {
	w.setPool("lan", 4+w.IntN(3))
	w.setPool("dmz", 2)
	for i := range w.IntN(3) {
		svc := w.service(fmt.Sprint("steady", i))
		svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: address("lan", i).String()}}
		w.put(servicesPath+svc.Name, nil, from(w.t, svc))
	}
}

func address(pool string, i int) netip.Addr {
	net := byte(2)
	if pool == "dmz" {
		net = 3
	}
	return netip.AddrFrom4([4]byte{192, 0, net, byte(1 + i)})
}

func (w *world) setPool(name string, n int) {
	path := "/apis/fanfare.io/v1alpha1/addresspools/" + name
	pool := &v1alpha1.AddressPool{ObjectMeta: metav1.ObjectMeta{Name: name}}
	pool.Spec.Announce = v1alpha1.AnnounceL2
	pool.Spec.Addresses = []string{fmt.Sprintf("%s-%s", address(name, 0), address(name, n-1))}
	w.put(path, w.objects[path], from(w.t, pool))
}

func (w *world) service(name string) *corev1.Service {
	s := w.plain(name)
	if w.rich {
		s.Spec.Ports[0].Port += int32(name[len(name)-1] % 3)
		w.enrich(s)
	}
	return s
}

func (w *world) plain(name string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: name, CreationTimestamp: metav1.NewTime(time.Now().Truncate(time.Second)),
		},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, ClusterIP: "10.0.0.1",
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			Ports:      []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}},
		},
	}
}

// use does something that users do. Services called steady are never edited.
func (w *world) use() {
	w.mu.Lock()
	defer w.mu.Unlock()
	name := fmt.Sprint([]string{"steady", "busy"}[w.IntN(2)], w.IntN(4))
	path := servicesPath + name
	old := w.objects[path]
	switch {
	case old == nil:
		w.put(path, nil, from(w.t, w.service(name)))
	case w.IntN(4) == 0:
		w.remove(path)
	case w.IntN(6) == 0:
		w.setPool("lan", 3+w.IntN(4))
	case w.IntN(8) == 0:
		w.reserve()
	case w.IntN(8) == 0:
		w.overwrite(path, old)
	case strings.HasPrefix(name, "busy"):
		svc := into[corev1.Service](w.t, old)
		w.edit(&svc)
		w.put(path, old, from(w.t, svc))
	}
}

// rivalAddress is in no pool.
const rivalAddress = "203.0.113.9"

// overwrite is what another controller does: it writes an address of its own, a host name, or nothing,
// into the status of a Service that has a claim. Without one, the address would be its own.
func (w *world) overwrite(path string, old object) {
	svc := into[corev1.Service](w.t, old)
	if svc.Spec.Type != corev1.ServiceTypeLoadBalancer || !w.claimed(svc) {
		return
	}
	svc.Status.LoadBalancer.Ingress = [][]corev1.LoadBalancerIngress{
		nil, {{IP: rivalAddress}}, {{Hostname: "lb.example.com"}},
		append(svc.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: rivalAddress}),
	}[w.IntN(4)]
	w.rival = true
	w.put(path, old, from(w.t, svc))
	w.rival = false
}

// claimed reports whether a claim names each address of the status.
func (w *world) claimed(svc corev1.Service) bool {
	for _, a := range addrs(svc) {
		c := into[v1alpha1.AddressClaim](w.t, w.objects[claimsPath+"/"+a])
		if !slices.ContainsFunc(c.Spec.Holders, func(h v1alpha1.ClaimHolder) bool { return h.Name == svc.Name }) {
			return false
		}
	}
	return len(addrs(svc)) != 0
}

// reserve sets or ends a reservation.
func (w *world) reserve() {
	path := claimsPath + "/" + v1alpha1.ClaimName(address("lan", w.IntN(4)))
	if old := w.objects[path]; old != nil {
		c := into[v1alpha1.AddressClaim](w.t, old)
		c.Spec.Reserved = !c.Spec.Reserved
		w.put(path, old, from(w.t, c))
	}
}

// annotations are a copy, never nil.
func annotations(svc *corev1.Service) map[string]string {
	all := map[string]string{}
	maps.Copy(all, svc.Annotations)
	return all
}

// enrich has a Service share, or not, and keep its addresses, or not.
func (w *world) enrich(svc *corev1.Service) {
	svc.Annotations = annotations(svc)
	for _, a := range [][2]string{{cluster.SharingAnnotation, "k"}, {cluster.ReserveAnnotation, "true"}} {
		if delete(svc.Annotations, a[0]); w.IntN(3) != 0 {
			svc.Annotations[a[0]] = a[1]
		}
	}
}

func (w *world) edit(svc *corev1.Service) {
	if w.rich {
		switch w.IntN(4) {
		case 0:
			w.enrich(svc)
			return
		case 1:
			svc.Annotations = annotations(svc)
			svc.Annotations["fanfare.io/load-balancer-ips"] = fmt.Sprintf("%s,%s", address("lan", w.IntN(3)),
				address("dmz", w.IntN(2)))
			return
		}
	}
	set := func(key, value string) {
		old := svc.Annotations
		svc.Annotations = map[string]string{key: value}
		for _, key := range []string{cluster.SharingAnnotation, cluster.ReserveAnnotation} {
			if v, ok := old[key]; ok {
				svc.Annotations[key] = v
			}
		}
	}
	switch w.IntN(4) {
	case 0:
		set("fanfare.io/address-pool", []string{"lan", "dmz"}[w.IntN(2)])
	case 1:
		set("fanfare.io/load-balancer-ips", address([]string{"lan", "dmz"}[w.IntN(2)], w.IntN(3)).String())
	case 2:
		svc.Annotations = nil
	default:
		if svc.Spec.Type == corev1.ServiceTypeLoadBalancer {
			svc.Spec.Type = corev1.ServiceTypeClusterIP
			svc.Status.LoadBalancer.Ingress = nil // as the API server does
		} else {
			svc.Spec.Type = corev1.ServiceTypeLoadBalancer
		}
	}
}
