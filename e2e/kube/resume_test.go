package kube

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

// watchedBySpeaker are the resources that a speaker without Layer 2 and without Secrets watches.
var watchedBySpeaker = []string{
	"addressclaims", "addresspools", "bgpadvertisements", "bgppeers", "endpointslices", "l2advertisements", "nodes",
	"services",
}

// A speaker whose connection to the API server is cut lists nothing again: its watches continue. An
// API server that is restarted remembers no changes and answers watches by 410; then the speaker reads each
// resource once, from the API server's cache, because it names the version that it knows. The audit log
// has all requests that the API server received.
func TestWatchesResume(t *testing.T) {
	isolated(t, func(t *testing.T) {
		audit := newAuditLog(t)
		f := newFanfare(t, AuditLog(audit.policy, audit.log))
		relay := newRelay(t, f.Host())
		relay.rewrite(f.kubeconfig("speaker"))
		must(t, f.Admin().Apply(t.Context(), oneNode))
		f.run("controller")
		f.speaker()
		f.forwardsNew("before")

		for _, tt := range []struct {
			name      string
			interrupt func()
			lists     int // of each resource, at most
		}{
			{"cut", relay.cut, 0},
			{"cut again", relay.cut, 0},
			{"restarted", func() { f.APIServer.Kill(); must(t, f.StartAPIServer(t.Context())) }, 1},
		} {
			f.resumes(audit, tt.name, tt.interrupt, tt.lists)
		}
	})
}

// Three API servers share one address, behind a TCP load balancer, and one etcd. When the speaker's API server is
// killed, or stops in order, which takes a minute, each watch continues on another one from the version that the
// speaker knows: the speaker lists nothing. The controller and this test use the last API server only, so that
// the speaker also receives what another API server than its own has written.
func TestWatchesResumeOnAnotherAPIServer(t *testing.T) {
	isolated(t, func(t *testing.T) {
		audit := newAuditLog(t)
		f := newFanfare(t, AuditLog(audit.policy, audit.log))
		first, firstHost := f.anotherAPIServer()
		second, secondHost := f.anotherAPIServer()
		newRelay(t, firstHost, secondHost, f.Host()).rewrite(f.kubeconfig("speaker"))
		must(t, f.Admin().Apply(t.Context(), oneNode))
		f.run("controller")
		f.speaker()
		f.forwardsNew("before")

		f.resumes(audit, "killed", first.Kill, 0)
		f.resumes(audit, "stopped", second.Terminate, 0)
	})
}

// anotherAPIServer starts an API server that has been asked for Fanfare's objects, as by the speakers of other nodes:
// it begins to remember changes of a CRD's objects with the first request for them.
func (f *fanfare) anotherAPIServer() (*Process, string) {
	f.Helper()
	p, client, err := f.AddAPIServer(f.Context())
	must(f.T, err)
	for _, kind := range []string{"AddressClaim", "AddressPool", "BGPAdvertisement", "BGPPeer", "L2Advertisement"} {
		_, err := client.List(f.Context(), kindOf(kind))
		must(f.T, err)
	}
	return p, client.Host()
}

// resumes interrupts the connection to the API server, and checks that the speaker watches again, after at most
// lists lists of each resource.
func (f *fanfare) resumes(audit *auditLog, name string, interrupt func(), lists int) {
	f.Helper()
	await(f.T, time.Minute, "old watches", audit.watchesOld)
	audit.skip()
	interrupt()
	await(f.T, 2*time.Minute, "watches", func() error { return audit.watchesOpened(watchedBySpeaker) })
	f.forwardsNew(strings.ReplaceAll(name, " ", "-"))
	for resource, r := range audit.read() {
		f.Logf("%s: %s: %d watches, %d lists, %d versions", name, resource, r.watches, r.lists, r.versions)
		if r.lists > lists || r.unversioned > 0 {
			f.Errorf("%s: the speaker listed %s %d times, %d times without a version; want at most %d and 0", name,
				resource, r.lists, r.unversioned, lists)
		}
	}
}

// forwardsNew creates a Service and returns when the speaker forwards it.
func (f *fanfare) forwardsNew(name string) {
	f.Helper()
	must(f.T, f.Admin().Apply(f.Context(), oneService(name, "10.244.1.5")))
	await(f.T, time.Minute, "forwarding of "+name, func() error {
		vip, err := f.assigned(name)
		if err != nil {
			return err
		}
		return f.forwards(vip)
	})
}

// watchesOld returns an error while a watch is young: client-go takes a watch for broken that ends
// within a second without an event, and lists.
func (a *auditLog) watchesOld() error {
	for resource, r := range a.read() {
		if age := time.Since(r.last); age < 1500*time.Millisecond {
			return fmt.Errorf("the watch of %s is %s old", resource, age)
		}
	}
	return nil
}

// watchesOpened returns an error unless each resource is watched, or was listed, which is the error to report.
func (a *auditLog) watchesOpened(resources []string) error {
	all := a.read()
	var errs []error
	for _, r := range resources {
		if all[r] == nil || all[r].watches+all[r].lists == 0 {
			errs = append(errs, fmt.Errorf("no watch of %s", r))
		}
	}
	return errors.Join(errs...)
}
