package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/ipam"
)

// A claim is an AddressClaim that a Service needs before its status may have the address.
type claim struct {
	addr netip.Addr
	from cluster.Origin
	// old is the claim as it was read, nil if there was none.
	old *cluster.Claim
	// holders are all Services that should have the address, and the Services that may
	// share it with them.
	holders []cluster.Name
	// replaced counts the Service's earlier addresses that other hosts use.
	replaced int32
	// had: the condition of the Service, which holds the address, says so. If the status does not,
	// another controller has removed it.
	had bool
}

// holds reports whether name is a holder of c, which may be nil.
func holds(c *cluster.Claim, name cluster.Name) bool {
	return c != nil && slices.ContainsFunc(c.Holders, func(h cluster.Holder) bool { return h.Name == name })
}

// unkept reports whether the claim's reservation for the Service differs from the wanted one.
func (c claim) unkept(s *cluster.Spec) bool {
	return slices.ContainsFunc(c.old.Holders,
		func(h cluster.Holder) bool { return h.Name == s.Name && h.Reserve != s.Reserve }) ||
		!c.old.Reserved && slices.Contains(c.old.ReservedFor, s.Name)
}

// taken reports whether the claim has a holder that should not have the address.
func (c claim) taken() bool {
	return c.old != nil && slices.ContainsFunc(c.old.Holders,
		func(h cluster.Holder) bool { return !slices.Contains(c.holders, h.Name) })
}

// confirmLost returns nil if the claim of a names only other Services. Without a claim, the Service
// that should have the address must claim it first.
func (w writer) confirmLost(ctx context.Context, a netip.Addr, name cluster.Name) error {
	c, err := w.readClaim(ctx, v1alpha1.ClaimName(a))
	switch {
	case err != nil:
		return stale(err)
	case holds(c, name) || len(c.Holders) == 0:
		return fmt.Errorf("%w: no other Service has claimed it", errStale)
	}
	return nil
}

// confirmForeign returns nil unless the claim of a names the Service: then the snapshot has old claims.
func (w writer) confirmForeign(ctx context.Context, a netip.Addr, name cluster.Name) error {
	c, err := w.readClaim(ctx, v1alpha1.ClaimName(a))
	switch {
	case err != nil && !apierrors.IsNotFound(err):
		return stale(err)
	case err == nil && holds(c, name):
		return fmt.Errorf("%w: it names the Service", errStale)
	}
	return nil
}

// secure ensures that the claim names the Service, bound to the version that was read. A status is
// written only after all its claims are secured.
func (w writer) secure(ctx context.Context, c claim, spec *cluster.Spec, live *corev1.Service) error {
	old := c.old
	if old == nil {
		err := w.createClaim(ctx, newClaim(c, spec, live))
		if !apierrors.IsAlreadyExists(err) {
			return err
		}
		// This controller created the claim, and the response to that attempt was lost.
		if old, err = w.readClaim(ctx, v1alpha1.ClaimName(c.addr)); err != nil {
			return stale(err)
		}
		if c.old = old; len(old.Holders) == 0 || c.taken() {
			return fmt.Errorf("%w: another Service has it", errStale)
		}
	}
	if !c.had {
		if err := w.confirmSharing(ctx, old, spec); err != nil {
			return err
		}
	}
	holders, kept := bind(old.Holders, spec, live), without(old, spec.Name)
	if slices.Equal(holders, toAPI(old.Holders)) && slices.Equal(kept, reservations(old.ReservedFor)) {
		return nil
	}
	return stale(w.setHolders(ctx, old, holders, kept))
}

// confirmSharing returns nil when the other holders of a claim share the address with a
// Service that joins them. The snapshot may be older than a holder's decision to stop
// sharing, and that holder must not find another Service at its address.
func (w writer) confirmSharing(ctx context.Context, c *cluster.Claim, spec *cluster.Spec) error {
	if slices.Contains(spec.Status, c.Addr) {
		return nil
	}
	for _, h := range c.Holders {
		if h.Name == spec.Name {
			continue
		}
		live, err := w.service(ctx, h.Name)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("service %s, which has the address, too: %w", h.Name, err)
		}
		if other := specOf(live, w.classes); other != nil {
			if why, apart := ipam.Apart(spec, other); apart {
				return fmt.Errorf("%w: %s does not share it: %s", errStale, h.Name, why)
			}
		}
	}
	return nil
}

// without returns the reservations of a claim once a Service has it. A user's reservation stays as
// written.
func without(c *cluster.Claim, name cluster.Name) []v1alpha1.ClaimReservation {
	if c.Reserved {
		return reservations(c.ReservedFor)
	}
	return reservations(slices.DeleteFunc(slices.Clone(c.ReservedFor), func(k cluster.Name) bool { return k == name }))
}

// reservations returns nil for none: in a merge patch, that means "unset".
func reservations(names []cluster.Name) (out []v1alpha1.ClaimReservation) {
	for _, n := range names {
		out = append(out, v1alpha1.ClaimReservation{Namespace: n.Namespace, Name: n.Name})
	}
	return out
}

// readClaim reads the current claim.
func (w writer) readClaim(ctx context.Context, name string) (*cluster.Claim, error) {
	o, err := w.claim(ctx, name)
	if err != nil {
		return nil, err
	}
	for c := range cluster.Parse(o).Claims.All() {
		return c, nil
	}
	return nil, fmt.Errorf("%w: its name is not an address", errStale)
}

// newClaim returns the first claim of an address, for one Service.
func newClaim(c claim, spec *cluster.Spec, live *corev1.Service) *v1alpha1.AddressClaim {
	holders := bind(nil, spec, live)
	return &v1alpha1.AddressClaim{
		ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.ClaimName(c.addr)},
		Spec: v1alpha1.AddressClaimSpec{
			Address: c.addr.String(), Pool: c.from.Pool, Announce: v1alpha1.Announce(c.from.Announce), Holders: holders,
			Services: holdersText(holders, nil), Replaced: c.replaced,
		},
	}
}

// holdersText lists, for users, the Services that hold an address, and the Services that it is
// reserved for.
func holdersText(holders []v1alpha1.ClaimHolder, kept []v1alpha1.ClaimReservation) string {
	var have, wait []string
	for _, h := range holders {
		have = append(have, h.Namespace+"/"+h.Name)
	}
	for _, k := range kept {
		wait = append(wait, k.Namespace+"/"+cmp.Or(k.Name, "*"))
	}
	text := cluster.Enumerate(have)
	if len(wait) == 0 {
		return text
	}
	if text != "" {
		text += "; "
	}
	return text + "kept for " + cluster.Enumerate(wait)
}

// bind returns old with the Service, at the version that was read.
func bind(old []cluster.Holder, spec *cluster.Spec, live *corev1.Service) []v1alpha1.ClaimHolder {
	holders := slices.DeleteFunc(slices.Clone(old), func(h cluster.Holder) bool { return h.Name == spec.Name })
	holders = append(holders, cluster.Holder{
		Name: spec.Name, UID: live.UID, ResourceVersion: live.ResourceVersion, Reserve: spec.Reserve,
	})
	slices.SortFunc(holders, func(a, b cluster.Holder) int { return a.Name.Compare(b.Name) })
	return toAPI(holders)
}

// toAPI never returns nil: in a merge patch, that would mean "unset", not "empty".
func toAPI(holders []cluster.Holder) []v1alpha1.ClaimHolder {
	out := make([]v1alpha1.ClaimHolder, 0, len(holders))
	for _, h := range holders {
		out = append(out, v1alpha1.ClaimHolder{
			Namespace: h.Name.Namespace, Name: h.Name.Name, UID: string(h.UID), ResourceVersion: h.ResourceVersion,
			Reserve: h.Reserve,
		})
	}
	return out
}

// release executes a release. It removes holders that certainly do not have the address, and that
// no write in flight can give it to.
func (w writer) release(ctx context.Context, r release) error {
	var errs []error
	for _, ns := range r.expired {
		if gone, err := w.namespaceGone(ctx, ns); err != nil || !gone {
			return fmt.Errorf("reservation of %s for namespace %s: %w", r.old.Addr, ns, cmp.Or(err, errStale))
		}
	}
	left, kept := slices.Clone(r.old.Holders), r.kept
	for _, h := range r.from {
		if err := w.confirmReleased(ctx, r.old.Addr, h); err != nil {
			errs = append(errs, fmt.Errorf("release %s from %s: %w", r.old.Addr, h.Name, err))
			continue
		}
		left = slices.DeleteFunc(left, func(l cluster.Holder) bool { return l == h })
		if r.keeps(h) {
			kept = keep(kept, h.Name)
		}
	}
	if err := w.shrink(ctx, r.old, left, kept); err != nil {
		errs = append(errs, fmt.Errorf("claim %s: %w", r.old.Addr, err))
	}
	return errors.Join(errs...)
}

// keep adds a name to the Services that a claim is reserved for.
func keep(kept []cluster.Name, name cluster.Name) []cluster.Name {
	kept = append(slices.Clone(kept), name)
	slices.SortFunc(kept, cluster.Name.Compare)
	return slices.Compact(kept)
}

// shrink reduces the claim to the remaining holders and reservations.
func (w writer) shrink(ctx context.Context, old *cluster.Claim, left []cluster.Holder, kept []cluster.Name) error {
	switch {
	case len(left) == 0 && !old.Reserved && len(kept) == 0:
		if err := w.deleteClaim(ctx, old); !apierrors.IsNotFound(err) {
			return stale(err)
		}
		return nil
	case len(left) == len(old.Holders) && slices.Equal(kept, old.ReservedFor):
		return nil
	}
	return stale(w.setHolders(ctx, old, toAPI(left), reservations(kept)))
}

// confirmReleased returns nil when the Service does not have the address, and the API
// server would refuse a status for the version that the claim is bound to.
func (w writer) confirmReleased(ctx context.Context, a netip.Addr, h cluster.Holder) error {
	live, err := w.service(ctx, h.Name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	spec := specOf(live, w.classes)
	switch {
	case spec != nil && (has(live, a) || slices.Contains(spec.Reported.Addrs(), a)):
		// If only the condition says so, another controller has removed the address.
		return fmt.Errorf("%w: it has the address", errStale)
	case has(live, a) && live.Spec.Type == corev1.ServiceTypeLoadBalancer:
		return fmt.Errorf("its status has %s, and it is of %s now, so another controller owns that status; "+
			"remove the address from it", a, classOf(live))
	case spec == nil && live.Spec.Type != corev1.ServiceTypeLoadBalancer && (has(live, a) || hasCondition(live)):
		_, err = w.patchStatus(ctx, live, cleared())
	case live.ResourceVersion == h.ResourceVersion && live.UID == h.UID:
		_, err = w.patchStatus(ctx, live, touch(live))
	}
	return stale(err)
}
