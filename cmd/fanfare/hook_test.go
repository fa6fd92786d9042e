package main

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// kubeconfig writes a configuration for an API server that is a handler.
func kubeconfig(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	k := clientcmdapi.NewConfig()
	k.Clusters["test"] = &clientcmdapi.Cluster{Server: s.URL}
	k.Contexts["test"] = &clientcmdapi.Context{Cluster: "test"}
	k.CurrentContext = "test"
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*k, file); err != nil {
		t.Fatal(err)
	}
	return file
}

// crdServer keeps CRDs as an API server does, with versions.
type crdServer struct {
	mu        sync.Mutex
	crds      map[string]*unstructured.Unstructured
	conflicts int // how many writes another client is faster than
}

func (s *crdServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := path.Base(r.URL.Path)
	old := s.crds[name]
	if r.Method == http.MethodGet && old == nil {
		refuse(w, http.StatusNotFound, "NotFound")
		return
	}
	if r.Method == http.MethodGet {
		text, _ := old.MarshalJSON()
		w.Write(text)
		return
	}
	var o unstructured.Unstructured
	text, err := io.ReadAll(r.Body)
	if err != nil || o.UnmarshalJSON(text) != nil {
		refuse(w, http.StatusBadRequest, "BadRequest")
		return
	}
	if s.conflicts > 0 && old != nil {
		s.conflicts--
		old.SetResourceVersion(old.GetResourceVersion() + "0")
	}
	if old != nil && o.GetResourceVersion() != old.GetResourceVersion() {
		refuse(w, http.StatusConflict, "Conflict")
		return
	}
	s.crds[o.GetName()] = &o
	w.Write(text)
}

func refuse(w http.ResponseWriter, code int, reason string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	json.NewEncoder(w).Encode(map[string]any{
		"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason,
	})
}

// A missing CRD is created. One of an older version gets the new spec as a whole, also if another
// client writes at the same time, and keeps the metadata of others.
func TestHookCRDs(t *testing.T) {
	const name = "addresspools.fanfare.io"
	old := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": name, "resourceVersion": "7", "annotations": map[string]any{"argocd": "x"}},
		"spec":     map[string]any{"former": "rule"},
	}}
	s := &crdServer{crds: map[string]*unstructured.Unstructured{name: old}, conflicts: 1}
	out, err := run("hook", "crds", "--kubeconfig", kubeconfig(t, s.ServeHTTP))
	if err != nil || !strings.Contains(out, "CRD "+name+" updated\n") || strings.Count(out, " created\n") != 5 {
		t.Errorf("%v, %s", err, out)
	}
	files, err := os.ReadDir("../../manifests/crds")
	if err != nil || len(s.crds) != len(files) {
		t.Errorf("%d CRDs, want %d, %v", len(s.crds), len(files), err)
	}
	now := s.crds[name]
	_, former, _ := unstructured.NestedString(now.Object, "spec", "former")
	group, _, _ := unstructured.NestedString(now.Object, "spec", "group")
	if former || group != "fanfare.io" || now.GetAnnotations()["argocd"] != "x" ||
		now.GetAnnotations()["controller-gen.kubebuilder.io/version"] == "" {
		t.Errorf("the CRD is now %v", now.Object)
	}
}

// The hook ends when all nodes are clean, and otherwise says how many are not, and what to do.
func TestHookCleaned(t *testing.T) {
	status, deleted := "", false
	file := kubeconfig(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/apis/apps/v1/namespaces/lb-system/daemonsets/cleanup" || status == "" {
			refuse(w, http.StatusNotFound, "NotFound")
			return
		}
		deleted = r.Method == http.MethodDelete
		io.WriteString(w, `{"metadata": {"generation": 2}, "status": `+status+`}`)
	})
	for _, tt := range []struct{ status, want string }{
		{`{"observedGeneration": 2, "desiredNumberScheduled": 3, "numberReady": 3}`, ""},
		{`{"observedGeneration": 2}`, ""}, // No node.
		{`{"observedGeneration": 2, "desiredNumberScheduled": 3, "numberReady": 1}`,
			"lb-system/cleanup: 2 of 3 nodes are not clean; it stays"},
		{`{"observedGeneration": 1, "desiredNumberScheduled": 3, "numberReady": 3}`,
			"no controller has counted its nodes yet"},
		{"", "the server could not find the requested resource"},
	} {
		status, deleted = tt.status, false
		_, err := run("hook", "cleaned", "cleanup", "--namespace=lb-system", "--timeout=100ms", "--kubeconfig", file)
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.status, err, tt.want)
		}
		if deleted != (tt.want == "") {
			t.Errorf("%s: deleted the DaemonSet: %t", tt.status, deleted)
		}
	}
}

// The hook reports what the API server last said, also if that never answers.
func TestHookCleanedWithoutServer(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	c, err := hookClient(kubeconfig(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	if err != nil {
		t.Fatal(err)
	}
	if err := awaitCleaned(ctx, c, "lb-system", "cleanup"); err == nil ||
		!strings.Contains(err.Error(), "DaemonSet lb-system/cleanup: ") {
		t.Errorf("%v", err)
	}
}
