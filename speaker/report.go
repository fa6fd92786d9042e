package speaker

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
	"github.com/fanfare-lb/fanfare/bgp"
	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// maxError is the length to which an error is cut in a report.
const maxError = 4096

// maxInterfaces and maxPrefixes, of each, are what the CRD takes.
const (
	maxInterfaces = 64
	maxPrefixes   = 32
)

// report is what of a Status goes to the API server: bounded, and without what
// changes all the time.
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

// interfaceReports are of those that matter to any address: of a node with hundreds, most
// are pods'.
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

func sessionReport(s bgp.SessionStatus) v1alpha1.SpeakerSession {
	out := v1alpha1.SpeakerSession{
		Name: s.Name, Address: s.Router(), ASN: int64(s.PeerASN), State: string(s.State),
		Since: metav1.NewTime(s.Since.Truncate(time.Second)), Routes: int32(s.Advertised),
	}
	if s.BFD != nil {
		out.BFD = s.BFD.Summary()
	}
	if s.State != bgp.Established {
		// On the way up a session passes through several states in milliseconds, and
		// back. To people and to the API server it is down all the while.
		out.State, out.Error = "Down", s.Trouble()
	}
	return out
}

func count(c *v1alpha1.SpeakerAddresses, a *AddressStatus, heard bool) {
	if len(a.Services) > 0 {
		c.Assigned++
	}
	if a.Programmed {
		c.Forwarded++
	}
	if a.Announced && heard || a.Answered() {
		c.Announced++
	}
	if a.Lingering != nil {
		c.Lingering++
	}
}

// reasons are the first of what is in the way on the node, of what is wrong with objects, of Services without an
// address, and of addresses that are not served as asked.
func reasons(st *Status) (out []v1alpha1.SpeakerReason) {
	add := func(r v1alpha1.SpeakerReason) bool {
		if len(out) < v1alpha1.MaxSpeakerReasons {
			out = append(out, r)
		}
		return len(out) < v1alpha1.MaxSpeakerReasons
	}
	for _, o := range st.Proxy.Obstacles {
		add(v1alpha1.SpeakerReason{Code: string(o.Code), Message: o.Message})
	}
	for _, p := range st.Problems {
		add(v1alpha1.SpeakerReason{Code: "Problem", Message: p.String()})
	}
	for _, p := range st.L2.Problems {
		add(v1alpha1.SpeakerReason{Code: "Problem", Message: p.Message})
	}
	for _, p := range st.BGP.Problems {
		add(v1alpha1.SpeakerReason{Code: "Problem", Message: p})
	}
	if st.Members != nil {
		for _, p := range st.Members.Problems {
			add(v1alpha1.SpeakerReason{Code: "Problem", Message: "members: " + p})
		}
	}
	for _, r := range st.Waiting {
		add(v1alpha1.SpeakerReason{Service: r.Service, Code: string(r.Code), Message: r.Message})
	}
	for _, a := range st.Addresses {
		for _, r := range a.Reasons {
			if r.Code == cluster.Programmed || r.Code == cluster.Announced || r.Code == cluster.AnotherNode {
				continue
			}
			if !add(v1alpha1.SpeakerReason{Address: a.Address.String(), Service: r.Service, Code: string(r.Code), Message: r.Message}) {
				return out
			}
		}
	}
	return out
}
