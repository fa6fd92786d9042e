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
	for _, want := range []string{"# COMPARISON: 0 announcements before, 0 after, 0 differences.",
		"kind: AddressPool\n", "kind: L2Advertisement\n", "example.com/announcer: fanfare"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if err := os.WriteFile(node, []byte(`{apiVersion: metallb.io/v1beta1, kind: Community, metadata: {name: c}, spec: {aliases: []}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err = run("migrate", "metallb", "--files", dir+","+node)
	if err == nil || !strings.Contains(err.Error(), "1 not read, 0 without counterpart") ||
		!strings.Contains(out, "spec.aliases: is no field of Community") {
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
		case "/apis/metallb.io/v1beta1/ipaddresspools", "/api/v1/services", "/api/v1/nodes", "/api/v1/namespaces",
			"/apis/discovery.k8s.io/v1/endpointslices":
			fmt.Fprint(w, `{"apiVersion": "v1", "kind": "List", "items": []}`)
		case "/api/v1/configmaps?fieldSelector=metadata.name%3Dconfig":
			fmt.Fprint(w, `{"apiVersion": "v1", "kind": "ConfigMapList", "items": [{"metadata": {"name": "config"}, "data": {"config": "{}"}}]}`)
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

// Without an object of MetalLB there is nothing to convert, which is no success.
func TestMigrateNothing(t *testing.T) {
	for what, c := range map[string]struct{ text, says string }{
		"only Nodes": {"{apiVersion: v1, kind: Node, metadata: {name: n1}}",
			"there is no object of MetalLB (metallb.io)"},
		"MetalLB 0.12": {"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: config, namespace: " +
			"metallb-system}\ndata:\n  config: |\n    address-pools:\n    - name: default\n",
			"MetalLB's ConfigMap metallb-system/config (FILE): data[config]: is the configuration of MetalLB 0.12 " +
				"and older (address-pools: …), which is not converted; convert it to objects first, by MetalLB's own " +
				"quay.io/metallb/configmaptocrs"},
		"another ConfigMap": {"{apiVersion: v1, kind: ConfigMap, metadata: {name: config}, data: {config: x}}",
			"there is no object of MetalLB"},
	} {
		file := filepath.Join(t.TempDir(), "objects.yaml")
		if err := os.WriteFile(file, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := run("migrate", "metallb", "--files", file)
		if err == nil || !strings.Contains(err.Error(), strings.ReplaceAll(c.says, "FILE", file)) ||
			strings.Contains(out, "0 differences") {
			t.Errorf("%s: %v\n%s", what, err, out)
		}
	}
}

// What is not served is in a plan, with the reason; of many, the first ones.
func TestPlanUnserved(t *testing.T) {
	dir := t.TempDir()
	var text strings.Builder
	for i := range 25 {
		fmt.Fprintf(&text, "---\n{apiVersion: v1, kind: Service, metadata: {name: s%02d}, spec: {type: LoadBalancer, "+
			"loadBalancerClass: example.com/x, ports: [{port: 80}]}}\n", i)
	}
	text.WriteString("---\n{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: lost, labels: " +
		"{kubernetes.io/service-name: wbe}}, addressType: IPv4, endpoints: []}\n")
	if err := os.WriteFile(filepath.Join(dir, "objects.yaml"), []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := run("plan", "--files", dir, "--node-name", "n1", "--run-dir", t.TempDir())
	_, said, _ := strings.Cut(out, "not served\n")
	if err != nil || !strings.HasPrefix(said,
		"  EndpointSlice default/lost is of Service default/wbe, which does not exist\n  Service default/s00 has "+
			"spec.loadBalancerClass \"example.com/x\"") ||
		strings.Count(said, "\n") != maxUnserved+1 || !strings.HasSuffix(said, "  and 6 more\n") {
		t.Errorf("%v\n%s", err, out)
	}
}

// An implementation that is not known is an error.
func TestMigrateUnknown(t *testing.T) {
	if _, err := run("migrate", "purelb"); err == nil || !strings.Contains(err.Error(), `unknown command "purelb"`) {
		t.Errorf("got %v", err)
	}
}

// Two routers with one address in different VRFs, which MetalLB allows, have one session: that is printed, and no
// success.
func TestMigrateTwins(t *testing.T) {
	file := filepath.Join(t.TempDir(), "objects.yaml")
	var text strings.Builder
	text.WriteString("{apiVersion: v1, kind: Node, metadata: {name: n1}}\n---\n{apiVersion: v1, kind: Node, " +
		"metadata: {name: n2}}\n")
	for _, name := range []string{"blue", "red"} {
		fmt.Fprintf(&text, "---\n{apiVersion: metallb.io/v1beta2, kind: BGPPeer, metadata: {name: %s}, spec: {myASN: "+
			"1, peerASN: 2, peerAddress: 10.0.0.1, vrf: %s}}\n", name, name)
	}
	if err := os.WriteFile(file, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := run("migrate", "metallb", "--files", file)
	if err == nil || !strings.Contains(err.Error(), "1 invalid") ||
		strings.Count(out, "node n1 has no session by it: BGPPeer blue") != 1 || strings.Contains(out, "node n2") {
		t.Errorf("%v\n%s", err, out)
	}
}
