// Command health requests the healthCheckNodePort of kube-proxy's own code and writes the
// answers. Fanfare must answer the same. After an update of Kubernetes, run "go run
// ./health" to write internal/healthcheck/testdata/kube-proxy.txt again.
package main

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kubernetes/pkg/proxy/healthcheck"
	"k8s.io/kubernetes/pkg/proxy/util"
)

const timeout = time.Second // a pending change older than this is unhealthy

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	free, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return err
	}
	addr := free.Addr().String()
	free.Close()
	_, port, _ := net.SplitHostPort(addr)
	n, _ := strconv.ParseUint(port, 10, 16)

	proxier := healthcheck.NewProxyHealthServer("", timeout, nil)
	addresses := util.NewNodePortAddresses(corev1.IPv4Protocol, nil)
	server := healthcheck.NewServiceHealthServer("n1", nil, addresses, proxier, corev1.IPv4Protocol)
	service := types.NamespacedName{Namespace: "shop", Name: "web"}
	if err := server.SyncServices(map[types.NamespacedName]uint16{service: uint16(n)}); err != nil {
		return err
	}
	proxier.Updated(corev1.IPv4Protocol)
	for _, row := range []struct {
		endpoints int
		late      bool
	}{{0, false}, {1, false}, {12, false}, {1, true}} {
		if row.late {
			proxier.QueuedUpdate(corev1.IPv4Protocol)
			for proxier.Health().Healthy {
				time.Sleep(timeout / 10)
			}
		}
		if err := server.SyncEndpoints(map[types.NamespacedName]int{service: row.endpoints}); err != nil {
			return err
		}
		for _, request := range []string{"GET /", "HEAD /", "POST /any"} {
			answer, err := ask(addr, request)
			if err != nil {
				return err
			}
			fmt.Printf("-- %s endpoints=%d healthy=%t --\n%s\n", request, row.endpoints, !row.late, answer)
		}
	}
	return nil
}

var date = regexp.MustCompile(`Date: .*`)

// ask returns an answer without the parts that always differ.
func ask(addr, request string) ([]byte, error) {
	c, err := net.Dial("tcp4", addr)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	fmt.Fprintf(c, "%s HTTP/1.1\r\nHost: n1\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", request)
	answer, err := io.ReadAll(c)
	return date.ReplaceAll(bytes.ReplaceAll(answer, []byte("\r\n"), []byte("\n")), []byte("Date: -")), err
}
