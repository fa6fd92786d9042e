package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
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
