package kube

import (
	"bytes"
	"encoding/json"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"testing"
	"time"
)

// An auditLog is what the API server writes about its requests: one line of JSON before it
// answers a request, and for a watch another one when the watch ends.
type auditLog struct {
	t           *testing.T
	policy, log string
	skipped     int // bytes of the log that read leaves out
}

// auditPolicy logs lists and watches, once each.
const auditPolicy = `
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules: [{level: Metadata, verbs: [list, watch]}]
`

func newAuditLog(t *testing.T) *auditLog {
	dir := t.TempDir()
	a := &auditLog{t: t, policy: filepath.Join(dir, "policy.yaml"), log: filepath.Join(dir, "audit.log")}
	must(t, os.WriteFile(a.policy, []byte(auditPolicy), 0o600))
	must(t, os.WriteFile(a.log, nil, 0o600)) // Several API servers append only to a file that exists.
	return a
}

// reads are the requests for a resource that the API server accepted.
type reads struct {
	watches     int // from a known version
	lists       int // of all objects, also lists that come as a watch
	unversioned int // of these, the lists that name no version
	versions    int // lists of one object, of which only the version matters
	last        time.Time
}

// skip has read leave out what was logged so far.
func (a *auditLog) skip() {
	text, err := os.ReadFile(a.log)
	must(a.t, err)
	a.skipped = len(text)
}

// read counts the speaker's requests by resource.
func (a *auditLog) read() map[string]*reads {
	text, err := os.ReadFile(a.log)
	must(a.t, err)
	all := map[string]*reads{}
	for line := range bytes.Lines(text[a.skipped:]) {
		var e auditEvent
		if json.Unmarshal(line, &e) != nil {
			continue // the last line is not complete, or an API server that was killed has left it so
		}
		if e.ImpersonatedUser.Username == speakerAccount && e.ResponseStatus.Code == 200 {
			e.count(a.t, all)
		}
	}
	return all
}

// An auditEvent is the part of audit.k8s.io/v1 Event that is read.
type auditEvent struct {
	Stage, RequestURI string
	StageTimestamp    time.Time
	ImpersonatedUser  struct{ Username string }
	ResponseStatus    struct{ Code int }
}

func (e auditEvent) count(t *testing.T, all map[string]*reads) {
	u, err := url.Parse(e.RequestURI)
	must(t, err)
	q, resource := u.Query(), path.Base(u.Path)
	if all[resource] == nil {
		all[resource] = &reads{}
	}
	r := all[resource]
	r.last = e.StageTimestamp
	isWatch := q.Get("watch") == "true"
	// A watch without a version begins with all objects.
	isList := !isWatch || q.Get("sendInitialEvents") == "true" || q.Get("resourceVersion") == ""
	switch {
	case isWatch && e.Stage != "ResponseStarted": // its end
	case !isList:
		r.watches++
	case q.Get("limit") == "1":
		r.versions++
	default:
		r.lists++
		if v := q.Get("resourceVersion"); v == "" {
			r.unversioned++
		}
	}
}
