package plan

import (
	"bufio"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/fanfare-lb/fanfare/internal/cluster"
	"github.com/fanfare-lb/fanfare/internal/testing/plantest"
	"github.com/fanfare-lb/fanfare/proxy"
)

// A node uses the same endpoints as kube-proxy, whose code answered each line of the file:
// terminating endpoints (KEP-1669), topology hints (KEP-2433, KEP-3015), endpoints without a
// node.
func TestEndpointsEqualKubeProxy(t *testing.T) {
	f, err := os.Open("testdata/kube-proxy.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	n := 0
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if strings.HasPrefix(lines.Text(), "#") {
			continue
		}
		question, want, _ := strings.Cut(lines.Text(), " -> ")
		if got := asked(t, question); got != want {
			t.Errorf("%s:\ngot  %s\nwant %s", question, got, want)
		}
		n++
	}
	if n < 100 {
		t.Errorf("only %d cases", n)
	}
}

// asked decides about the Service in a line of kube-proxy.txt, and answers in its format.
func asked(t *testing.T, question string) string {
	field := map[string]string{}
	for word := range strings.FieldsSeq(question) {
		name, value, _ := strings.Cut(word, "=")
		field[name] = value
	}
	s := cluster.Service{
		Spec: &cluster.Spec{Ports: []cluster.Port{{Protocol: corev1.ProtocolTCP, Port: 80}}},
	}
	local := field["local"] == "true"
	if local {
		s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	}
	var list []cluster.Endpoint
	if field["endpoints"] != "" {
		for i, word := range strings.Split(field["endpoints"], ",") {
			list = append(list, endpoint(i, word))
		}
	}
	s.Endpoints = plantest.Endpoints("", 8080, list...)
	n1 := topology{node: "n1", zone: field["zone"]}
	share, _ := n1.serve(netip.MustParseAddr("192.0.2.1"), s, proxy.DefaultLimits(proxy.ModeNFTables), nil)
	fronts := share.fronts
	if len(fronts) != 1 {
		t.Fatalf("%s: %d frontends", question, len(fronts))
	}
	external := ""
	if local {
		external = indexes(fronts[0].External)
	} else if indexes(fronts[0].External) != indexes(fronts[0].Internal) {
		t.Errorf("%s: external and internal clients have other endpoints", question)
	}
	return fmt.Sprintf("cluster=%s local=%s any=%t", indexes(fronts[0].Internal), external,
		share.code != cluster.NoEndpoints)
}

// endpoint reads "rs@n1/a+b/n1": conditions, node, zone hints, node hints.
func endpoint(i int, word string) cluster.Endpoint {
	conditions, where, _ := strings.Cut(word, "@")
	parts := strings.Split(where, "/")
	hint := func(s string) cluster.Hint { return cluster.Hint(strings.ReplaceAll(s, "+", ",")) }
	return cluster.Endpoint{
		Addr:  netip.AddrFrom4([4]byte{10, 244, 0, byte(i)}),
		Ready: strings.Contains(conditions, "r"), Serving: strings.Contains(conditions, "s"),
		Terminating: strings.Contains(conditions, "t"),
		Node:        parts[0], ForZones: hint(parts[1]), ForNodes: hint(parts[2]),
	}
}

func indexes(t proxy.Target) string {
	var out []string
	for _, b := range t.Backends {
		out = append(out, strconv.Itoa(int(b.Addr.Addr().As4()[3])))
	}
	return strings.Join(out, "+")
}
