package controller

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/rest"

	"github.com/fanfare-lb/fanfare/api/v1alpha1"
)

// A store does what the API server does with objects: unique names, versions
// that never come back, conflicts, preconditions, patches, a status that only its
// subresource changes. The client under test is the real one; the store is
// what it talks HTTP to. client-go's own fake checks no versions.
type store struct {
	t testing.TB

	mu      sync.Mutex
	version int
	objects map[string]object // by path, such as /api/v1/namespaces/shop/services/web
	log     []change
	// wrote is called after each write, with the object before and after.
	wrote func(path string, before, after object)
}

type object = map[string]any

// A change is an event of a watch. Object is nil when it is gone.
type change struct {
	path   string
	object object
}

func newStore(t testing.TB) *store {
	return &store{t: t, objects: map[string]object{}, wrote: func(string, object, object) {}}
}

// config leads a client to the store, through rt if that is not nil.
func (s *store) config(rt http.RoundTripper) *rest.Config {
	if rt == nil {
		rt = s
	}
	return &rest.Config{Host: "http://store", Transport: rt}
}

// RoundTrip serves a request at once.
func (s *store) RoundTrip(r *http.Request) (*http.Response, error) {
	var body []byte
	if r.Body != nil {
		var err error
		if body, err = io.ReadAll(r.Body); err != nil {
			return nil, err
		}
	}
	return s.serve(r, body), nil
}

func (s *store) serve(r *http.Request, body []byte) *http.Response {
	s.mu.Lock()
	defer s.mu.Unlock()
	code, out := http.StatusOK, any(nil)
	got, err := s.handle(r, body)
	if err != nil {
		st := err.Status()
		st.APIVersion, st.Kind = "v1", "Status"
		code, out = int(st.Code), st
	} else {
		out = got
	}
	b, jerr := json.Marshal(out)
	if jerr != nil {
		s.t.Fatal(jerr)
	}
	return &http.Response{
		StatusCode: code, Request: r, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(bytes.NewReader(b)),
	}
}

func (s *store) handle(r *http.Request, body []byte) (object, *apierrors.StatusError) {
	path, status := strings.CutSuffix(r.URL.Path, "/status")
	gr := schema.GroupResource{Resource: path}
	old := s.objects[path]
	if old == nil && r.Method != http.MethodPost {
		return nil, apierrors.NewNotFound(gr, path)
	}
	in := object{}
	if len(body) != 0 {
		if err := json.Unmarshal(body, &in); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
	}
	switch r.Method {
	case http.MethodGet:
		return old, nil
	case http.MethodPost:
		path += "/" + meta(in, "name")
		if s.objects[path] != nil {
			return nil, apierrors.NewAlreadyExists(gr, path)
		}
		if a, ok := strings.CutPrefix(path, claimsPath+"/"); ok {
			if _, err := v1alpha1.ClaimAddress(a); err != nil {
				return nil, apierrors.NewBadRequest(err.Error())
			}
		}
		return s.put(path, nil, in), nil
	case http.MethodPut:
		if meta(in, "resourceVersion") != meta(old, "resourceVersion") {
			return nil, apierrors.NewConflict(gr, path, fmt.Errorf("version"))
		}
		return s.put(path, old, in), nil
	case http.MethodPatch:
		out, err := patched(old, in, types.PatchType(r.Header.Get("Content-Type")))
		switch {
		case err != nil:
			return nil, apierrors.NewBadRequest(err.Error())
		case meta(out, "resourceVersion") != meta(old, "resourceVersion") || meta(out, "uid") != meta(old, "uid"):
			return nil, apierrors.NewConflict(gr, path, fmt.Errorf("version"))
		case status:
			out = object{"metadata": old["metadata"], "spec": old["spec"], "status": out["status"]}
		}
		if svc := into[corev1.Service](s.t, out); strings.Contains(path, "/services/") && status &&
			svc.Spec.Type != corev1.ServiceTypeLoadBalancer && len(svc.Status.LoadBalancer.Ingress) != 0 {
			return nil, apierrors.NewBadRequest("ingress of a Service that is no LoadBalancer")
		}
		return s.put(path, old, out), nil
	case http.MethodDelete:
		o := into[metav1.DeleteOptions](s.t, in)
		if p := o.Preconditions; p != nil && (string(*p.UID) != meta(old, "uid") ||
			*p.ResourceVersion != meta(old, "resourceVersion")) {
			return nil, apierrors.NewConflict(gr, path, fmt.Errorf("precondition"))
		}
		s.remove(path)
		return old, nil
	}
	return nil, apierrors.NewMethodNotSupported(gr, r.Method)
}

// patched is old after a patch. Services know how their lists are merged,
// custom resources do not.
func patched(old, patch object, kind types.PatchType) (object, error) {
	old = clone(old)
	switch kind {
	case types.StrategicMergePatchType:
		return strategicpatch.StrategicMergeMapPatch(old, patch, corev1.Service{})
	case types.MergePatchType:
		return merged(old, patch), nil
	default:
		return nil, fmt.Errorf("patch type %s", kind)
	}
}

// merged is RFC 7386.
func merged(old, patch object) object {
	for k, v := range patch {
		was, _ := old[k].(object)
		switch v := v.(type) {
		case nil:
			delete(old, k)
		case object:
			if was == nil {
				was = object{}
			}
			old[k] = merged(was, v)
		default:
			old[k] = v
		}
	}
	return old
}

// put writes an object, if that is a change: versions stand still otherwise.
func (s *store) put(path string, old, in object) object {
	in = clone(in)
	m, _ := in["metadata"].(object)
	if old != nil {
		m["uid"], m["resourceVersion"] = meta(old, "uid"), meta(old, "resourceVersion")
		if reflect.DeepEqual(old, in) {
			return old
		}
	}
	s.version++
	if old == nil {
		m["uid"] = "uid-" + strconv.Itoa(s.version)
	}
	m["resourceVersion"] = strconv.Itoa(s.version)
	s.objects[path] = in
	s.log = append(s.log, change{path, in})
	s.wrote(path, old, in)
	return in
}

func (s *store) remove(path string) {
	old := s.objects[path]
	s.version++
	delete(s.objects, path)
	s.log = append(s.log, change{path, nil})
	s.wrote(path, old, nil)
}

const claimsPath = "/apis/fanfare.io/v1alpha1/addressclaims"

func meta(o object, field string) string {
	m, _ := o["metadata"].(object)
	v, _ := m[field].(string)
	return v
}

func clone(o object) object {
	b, _ := json.Marshal(o)
	out := object{}
	_ = json.Unmarshal(b, &out)
	return out
}

func into[T any](t testing.TB, o object) T {
	var v T
	b, err := json.Marshal(o)
	if err == nil {
		err = json.Unmarshal(b, &v)
	}
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func from(t testing.TB, v any) object {
	o := object{}
	b, err := json.Marshal(v)
	if err == nil {
		err = json.Unmarshal(b, &o)
	}
	if err != nil {
		t.Fatal(err)
	}
	return o
}
