package speaker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"time"

	"golang.org/x/time/rate"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
	"github.com/fanfare-lb/fanfare/bgp"
	"github.com/fanfare-lb/fanfare/internal/apigroup"
	"github.com/fanfare-lb/fanfare/internal/base/notify"
	"github.com/fanfare-lb/fanfare/internal/base/retry"
	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/event"
	"github.com/fanfare-lb/fanfare/internal/membership"
)

// reportInterval is the least time between two writes of a SpeakerStatus. A change on 1,000
// nodes causes 200 writes a second at most, and a flapping session is not amplified.
const reportInterval = 5 * time.Second

// memberWrites is how many SpeakerStatuses all nodes together write in a second, on average, while only
// the number of members changes. In a rolling update it changes on every node, twice for each.
const memberWrites = 4

// rewriteInterval is the time after which an unchanged SpeakerStatus is written again,
// because a user or the garbage collector may have deleted it.
const rewriteInterval = 10 * time.Minute

// requestTimeout ends a request without a response.
const requestTimeout = 10 * time.Second

// A Reporter writes a speaker's SpeakerStatus and Events, and reads nothing. A nil Reporter does nothing.
type Reporter struct {
	node             string
	statuses, events rest.Interface
	log              *slog.Logger
	wake             chan struct{} // has room for one
	// conflicts belong to Run.
	conflicts conflictReport
}

// NewReporter returns a Reporter for the node. It sends no request yet.
func NewReporter(c *rest.Config, node string, log *slog.Logger) (*Reporter, error) {
	scheme := apigroup.Scheme(v1alpha1.AddToScheme, eventsv1.AddToScheme)
	statuses, err := apigroup.Client(c, nil, scheme, v1alpha1.GroupVersion)
	if err != nil {
		return nil, fmt.Errorf("client of SpeakerStatuses: %w", err)
	}
	events, err := apigroup.Client(c, nil, scheme, eventsv1.SchemeGroupVersion)
	if err != nil {
		return nil, fmt.Errorf("client of Events: %w", err)
	}
	return &Reporter{node: node, statuses: statuses, events: events, log: log, wake: make(chan struct{}, 1)}, nil
}

// eventRecorder returns a recorder of Events that are not known yet.
func (r *Reporter) eventRecorder(known reported) *eventRecorder {
	if r == nil {
		return nil
	}
	return &eventRecorder{
		writer: event.Writer{Client: r.events, Log: r.log},
		source: event.Source{Controller: "fanfare.io/speaker", Instance: r.node},
		log:    r.log, wake: make(chan struct{}, 1),
		limit: rate.NewLimiter(rate.Every(eventRefill), eventBurst), reported: known,
		recent: map[seriesKey]pendingEvent{},
	}
}

// Trigger requests a report.
func (r *Reporter) Trigger() {
	if r == nil {
		return
	}
	notify.Changed(r.wake)
}

// Run reports until ctx ends, and retries with backoff. Nothing else waits for it.
func (r *Reporter) Run(ctx context.Context, status func() Status) {
	if r == nil {
		return
	}
	var last v1alpha1.SpeakerStatus
	var at time.Time // when last was written; zero before
	var why string   // error of the last attempt
	retries := retry.Backoff(reportInterval, 2*time.Minute)
	var due <-chan time.Time // has a value when the last report may be written that was not
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.wake:
		case <-r.conflictsExpire():
		case <-due:
		}
		pause := reportInterval
		st := status()
		r.conflicts = r.conflicts.next(st.Addresses, time.Now())
		now := speakerStatus(&st, r.conflicts.list(), &last, time.Now())
		due = nil
		if now != nil {
			if wait := writeInterval(now, &last, st.Members) - time.Since(at); wait > 0 {
				due = time.After(wait)
			} else if err := r.write(ctx, now); err != nil {
				why = r.failed(err, why)
				pause = retries.NextBackOff()
				r.Trigger()
			} else {
				last, at, why = *now, time.Now(), ""
				retries.Reset()
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// writeInterval returns the least time between the writes of last and of now.
func writeInterval(now, last *v1alpha1.SpeakerStatus, members *membership.Status) time.Duration {
	if reflect.DeepEqual(now, last) {
		return rewriteInterval
	}
	other := *now
	other.Status.Members, other.Status.Changed = last.Status.Members, last.Status.Changed
	if members != nil && reflect.DeepEqual(&other, last) {
		return time.Duration(len(members.Nodes)) * time.Second / memberWrites
	}
	return 0
}

// conflictsExpire has a value when reported conflicts may have expired; nil without any.
func (r *Reporter) conflictsExpire() <-chan time.Time {
	if len(r.conflicts) == 0 {
		return nil
	}
	return time.After(conflictLifetime / 10)
}

// failed logs why a SpeakerStatus was not written, and returns it. A rejection is a warning
// once, since an operator must act: server-side apply accepts only fields of the CRD. Other
// errors mean that the API server is unreachable, which is logged elsewhere.
func (r *Reporter) failed(err error, before string) (why string) {
	level := slog.LevelDebug
	if refused := apierrors.APIStatus(nil); errors.As(err, &refused) && err.Error() != before {
		level = slog.LevelWarn
	}
	r.log.Log(context.Background(), level,
		"SpeakerStatus not written; if its CRD is older than this speaker, apply manifests/crds", "node", r.node, "err",
		err)
	return err.Error()
}

// speakerStatus returns the object for st, equal to last if nothing has changed. The Node
// owns it, so that both are deleted together; without a Node there is none.
func speakerStatus(st *Status, conflicts []v1alpha1.SpeakerConflict, last *v1alpha1.SpeakerStatus,
	now time.Time) *v1alpha1.SpeakerStatus {
	if st.NodeUID == "" {
		return nil
	}
	o := &v1alpha1.SpeakerStatus{
		TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "SpeakerStatus"},
		ObjectMeta: metav1.ObjectMeta{Name: st.Node, OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "v1", Kind: "Node", Name: st.Node, UID: st.NodeUID},
		}},
		Status: report(st, now),
	}
	o.Status.Conflicts, o.Status.Changed = conflicts, last.Status.Changed
	if !reflect.DeepEqual(*o, *last) {
		o.Status.Changed = metav1.NewTime(now.Truncate(time.Second))
	}
	return o
}

// write creates or replaces a SpeakerStatus by server-side apply, without reading it first.
func (r *Reporter) write(ctx context.Context, o *v1alpha1.SpeakerStatus) error {
	body, err := json.Marshal(o)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return r.statuses.Patch(types.ApplyPatchType).Resource("speakerstatuses").Name(o.Name).
		Param("fieldManager", "fanfare-speaker").Param("force", "true").Body(body).Do(ctx).Error()
}

// maxError is the length at which an error in a report is cut.
const maxError = 4096

// The CRD accepts maxInterfaces, each with maxPrefixes.
const (
	maxInterfaces = 64
	maxPrefixes   = 32
)

// report returns the part of a Status that the API server receives: bounded, and without
// values that change all the time.
func report(st *Status, now time.Time) v1alpha1.SpeakerReport {
	r := v1alpha1.SpeakerReport{
		Version:   st.Version,
		Repairs:   int64(st.Proxy.Repairs),
		Error:     st.Error[:min(len(st.Error), maxError)],
		Attention: int32(len(st.Attention(now))),
	}
	r.Members = st.Members.Summary()
	up := 0
	for _, s := range st.BGP.Sessions {
		r.Sessions = append(r.Sessions, sessionReport(s))
		if s.State == bgp.Established {
			up++
		}
	}
	r.Established = fmt.Sprintf("%d/%d", up, len(st.BGP.Sessions))
	for i := range st.Addresses {
		count(&r.Addresses, &st.Addresses[i], up > 0)
	}
	r.Interfaces = interfaceReports(st)
	r.Reasons = reasons(st)
	return r
}

// interfaceReports lists the interfaces that matter to any address; of hundreds, most
// belong to pods.
func interfaceReports(st *Status) (out []v1alpha1.SpeakerInterface) {
	for _, i := range st.L2.Interfaces {
		if len(out) == maxInterfaces {
			break
		}
		r := v1alpha1.SpeakerInterface{Name: i.Name, MAC: i.MAC.String()}
		for _, p := range i.Prefixes[:min(len(i.Prefixes), maxPrefixes)] {
			r.Prefixes = append(r.Prefixes, p.String())
		}
		out = append(out, r)
	}
	return out
}

// sessionReport omits what changes with every packet, such as counters.
func sessionReport(s bgp.SessionStatus) v1alpha1.SpeakerSession {
	out := v1alpha1.SpeakerSession{
		Name: s.Name, Address: s.Router(), ASN: int64(s.PeerASN), State: string(s.State),
		Since: metav1.NewTime(s.Since.Truncate(time.Second)), Routes: int32(s.Advertised),
	}
	if s.BFD != nil {
		out.BFD = s.BFD.Summary()
	}
	if s.State != bgp.Established {
		// A session passes through several states within milliseconds on its way up and
		// back. For users and the API server it is down meanwhile.
		out.State, out.Error = "Down", s.DownReason()
	}
	return out
}

// count adds an address to the totals. Without any session, no router has a route to it, so
// it does not count as announced.
func count(c *v1alpha1.SpeakerAddresses, a *AddressStatus, established bool) {
	if len(a.Services) > 0 {
		c.Assigned++
	}
	if a.Programmed {
		c.Forwarded++
	}
	if a.Announced && established || a.Answered() {
		c.Announced++
	}
	if a.Lingering != nil {
		c.Lingering++
	}
}

// maxNamespaceReasons is how many of the reasons may be about one namespace: the mistakes of one tenant
// must not hide what is wrong with others.
const maxNamespaceReasons = v1alpha1.MaxSpeakerReasons / 4

// A reasonList collects reasons up to its bounds.
type reasonList struct {
	all         []v1alpha1.SpeakerReason
	ofNamespace map[string]int
}

// add adds a reason about an object of a namespace, empty for none. It returns false if the list is full.
func (l *reasonList) add(namespace string, r v1alpha1.SpeakerReason) bool {
	if len(l.all) == v1alpha1.MaxSpeakerReasons {
		return false
	}
	if l.ofNamespace[namespace]++; namespace == "" || l.ofNamespace[namespace] <= maxNamespaceReasons {
		l.all = append(l.all, r)
	}
	return true
}

// problem adds a reason that is only a sentence.
func (l *reasonList) problem(namespace, message string) {
	l.add(namespace, v1alpha1.SpeakerReason{Code: "Problem", Message: message})
}

// reasons lists what blocks traffic on the node, invalid objects, Services without an
// address, and addresses that are not served as specified, up to a bound.
func reasons(st *Status) []v1alpha1.SpeakerReason {
	l := &reasonList{ofNamespace: map[string]int{}}
	for _, o := range st.Proxy.Obstacles {
		l.add("", v1alpha1.SpeakerReason{Code: string(o.Code), Message: o.Message})
	}
	for _, p := range st.L2.Problems {
		l.problem("", p.Message)
	}
	for _, p := range st.BGP.Problems {
		l.problem("", p)
	}
	if st.Members != nil {
		for _, p := range st.Members.Problems {
			l.problem("", "members: "+p)
		}
	}
	for _, p := range st.Problems {
		l.problem(p.Object.Name.Namespace, p.String())
	}
	for _, r := range st.Waiting {
		l.add(namespaceOf(r.Service), v1alpha1.SpeakerReason{
			Service: r.Service, Code: string(r.Code), Message: r.Message,
		})
	}
	for _, a := range st.Addresses {
		for _, r := range a.Reasons {
			if r.Code == cluster.Programmed || r.Code == cluster.Announced || r.Code == cluster.AnotherNode {
				continue
			}
			if !l.add(namespaceOf(r.Service), v1alpha1.SpeakerReason{
				Address: a.Address.String(), Service: r.Service, Code: string(r.Code), Message: r.Message,
			}) {
				return l.all
			}
		}
	}
	return l.all
}

// namespaceOf returns the namespace in a Service's name.
func namespaceOf(service string) string {
	namespace, _, _ := strings.Cut(service, "/")
	return namespace
}
