package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/fanfare-lb/fanfare/internal/metallb"
)

const metalLBObjects = `
apiVersion: metallb.io/v1beta1
kind: IPAddressPool
metadata: {name: lan, namespace: metallb-system}
spec: {addresses: [192.0.2.0/26]}
---
apiVersion: metallb.io/v1beta1
kind: L2Advertisement
metadata: {name: l2, namespace: metallb-system}
spec: {ipAddressPools: [lan], interfaces: [eth0]}
`

// A folder and a file together make the cluster. What was not read is an error after the output, so
// that a script does not apply it unseen.
func TestMigrateMetalLB(t *testing.T) {
	dir := t.TempDir()
	node := filepath.Join(t.TempDir(), "nodes")
	for path, text := range map[string]string{
		filepath.Join(dir, "metallb.yaml"): metalLBObjects,
		filepath.Join(dir, "README"):       "no YAML: [",
		node:                               "{apiVersion: v1, kind: Node, metadata: {name: n1}}",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	out, err := run("migrate", "metallb", "--files", dir+","+node, "--node-label", "example.com/announcer=fanfare")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"# COMPARISON: 0 announcements before, 0 after, 0 differences.", "kind: AddressPool\n", "kind: L2Advertisement\n", "example.com/announcer: fanfare"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if err := os.WriteFile(node, []byte(`{apiVersion: metallb.io/v1beta1, kind: Community, metadata: {name: c}, spec: {aliases: []}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err = run("migrate", "metallb", "--files", dir+","+node)
	if err == nil || !strings.Contains(err.Error(), "1 not read, 0 without counterpart") || !strings.Contains(out, "spec.aliases: is no field of Community") {
		t.Errorf("%v\n%s", err, out)
	}
}

// From an API server all lists are read: BGPPeers in the newest version that it has, and the ConfigMap of
// one name only.
func TestMigrateReadsAPI(t *testing.T) {
	const peers = `{"apiVersion": "metallb.io/v1beta1", "kind": "BGPPeerList", "items": [{"apiVersion": "metallb.io/v1beta1", "kind": "BGPPeer", "metadata": {"name": "tor1"}, "spec": {"myASN": 1, "peerASN": 2, "peerAddress": "10.0.0.1"}}]}`
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch r.URL.RequestURI() {
		case "/apis/metallb.io/v1beta1/bgppeers":
			fmt.Fprint(w, peers)
		case "/apis/metallb.io/v1beta1/ipaddresspools", "/api/v1/services", "/api/v1/nodes", "/api/v1/namespaces", "/apis/discovery.k8s.io/v1/endpointslices":
			fmt.Fprint(w, `{"apiVersion": "v1", "kind": "List", "items": []}`)
		case "/api/v1/configmaps?fieldSelector=metadata.name%3Dbgpextras":
			fmt.Fprint(w, `{"apiVersion": "v1", "kind": "ConfigMapList", "items": [{"metadata": {"name": "bgpextras"}}]}`)
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	defer server.Close()
	in := &metallb.Cluster{}
	if err := readAPI(t.Context(), in, &rest.Config{Host: server.URL}); err != nil {
		t.Fatal(err)
	}
	if len(in.Peers) != 1 || in.Peers[0].Spec.PeerASN != 2 || len(in.Problems) != 1 {
		t.Errorf("peers %+v, problems %v", in.Peers, in.Problems)
	}
}
