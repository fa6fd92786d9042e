package controller

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
)

// A mutant takes one of the things away that the writer relies on. It does so
// between the writer and the API server, so that what is tested is the writer
// as it is.
type mutant struct {
	name string
	// seed is where to begin to look for a world that it breaks.
	seed uint64
	// change changes a request on its way, or answers it itself.
	change func(w *world, r *request) *http.Response
}

func (m mutant) serve(w *world, r *request) *http.Response {
	if m.change != nil {
		if resp := m.change(w, r); resp != nil {
			return resp
		}
	}
	return w.serve(r.req, r.body)
}

func (r *request) is(method, part string) bool {
	return r.req.Method == method && strings.Contains(r.req.URL.Path, part)
}

// strip removes a field from the body.
func (r *request) strip(path ...string) {
	o := object{}
	if json.Unmarshal(r.body, &o) != nil {
		return
	}
	at := o
	for _, p := range path[:len(path)-1] {
		at, _ = at[p].(object)
	}
	delete(at, path[len(path)-1])
	r.body, _ = json.Marshal(o)
}

// unbind takes the versions from a claim's holders.
func (r *request) unbind() {
	o := object{}
	if json.Unmarshal(r.body, &o) != nil {
		return
	}
	spec, _ := o["spec"].(object)
	holders, _ := spec["holders"].([]any)
	for _, h := range holders {
		delete(h.(object), "resourceVersion")
	}
	r.body, _ = json.Marshal(o)
}

var mutants = []mutant{
	{"a status is written over any version", 7, func(_ *world, r *request) *http.Response {
		if r.is(http.MethodPatch, "/status") {
			r.strip("metadata", "resourceVersion")
		}
		return nil
	}},
	{"a claim that exists counts as created", 2, func(w *world, r *request) *http.Response {
		resp := w.serve(r.req, r.body)
		if r.is(http.MethodPost, "/addressclaims") && resp.StatusCode == http.StatusConflict {
			resp.StatusCode = http.StatusCreated
		}
		return resp
	}},
	{"no claim is created before the status", 1, func(w *world, r *request) *http.Response {
		if r.is(http.MethodPost, "/addressclaims") {
			w.waiting.Lock()
			defer w.waiting.Unlock()
			w.pending = append(w.pending, &request{r.node, r.req.Clone(w.t.Context()), r.body, make(chan answer, 1)})
			w.pending[len(w.pending)-1].req.Method = "post" // once
			return &http.Response{StatusCode: http.StatusCreated, Header: http.Header{}, Body: http.NoBody}
		}
		if r.req.Method == "post" {
			r.req.Method = http.MethodPost
		}
		return nil
	}},
	{"a claim is bound to no version", 644, func(_ *world, r *request) *http.Response {
		if r.is(http.MethodPatch, "/addressclaims") || r.is(http.MethodPost, "/addressclaims") {
			r.unbind()
		}
		return nil
	}},
	{"a claim that was there already is not bound", 0, func(_ *world, r *request) *http.Response {
		if r.is(http.MethodPatch, "/addressclaims") && strings.Contains(string(r.body), `"holders":[{`) {
			return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: http.NoBody}
		}
		return nil
	}},
	{"a claim is deleted at any version", 93, func(_ *world, r *request) *http.Response {
		if r.is(http.MethodDelete, "/addressclaims") {
			r.body = nil
		}
		return nil
	}},
	{"a claim in the snapshot is enough to take an address away", 537, func(w *world, r *request) *http.Response {
		if !r.is(http.MethodGet, "/addressclaims/") {
			return nil
		}
		for c := range r.node.feed.Snapshot().Claims.All() {
			if strings.HasSuffix(r.req.URL.Path, "/"+c.Name()) && w.objects[r.req.URL.Path] != nil {
				o := clone(w.objects[r.req.URL.Path])
				o["spec"] = object{"address": c.Addr.String(), "holders": toAPI(c.Holders)}
				b, _ := json.Marshal(o)
				return &http.Response{
					StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}},
					Body: io.NopCloser(bytes.NewReader(b)),
				}
			}
		}
		return nil
	}},
	{"a claim is released without a look at the Service", 5, func(w *world, r *request) *http.Response {
		if r.is(http.MethodGet, "/services/") && w.objects[r.req.URL.Path] != nil && !w.claimless(r) {
			r.req.URL.Path += "-gone"
		}
		return nil
	}},
}

// claimless reports whether the reader of a Service is about to update it, not to
// release what it has: then its own snapshot has the Service.
func (w *world) claimless(r *request) bool {
	for s := range r.node.feed.Snapshot().Services.All() {
		if strings.HasSuffix(r.req.URL.Path, "/"+s.Name.Name) {
			return true
		}
	}
	return false
}

// Each mutant breaks a promise in some world.
func TestMutants(t *testing.T) {
	if testing.Short() {
		t.Skip("many worlds")
	}
	for _, m := range mutants {
		t.Run(strings.ReplaceAll(m.name, " ", "-"), func(t *testing.T) {
			for i := range uint64(2000) {
				seed := m.seed + i
				if broken := runWorld(t, seed, m, false); broken != "" {
					t.Logf("seed %d: %s", seed, broken)
					return
				}
			}
			t.Error("no world is broken by it")
		})
	}
}
