package matrix

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// hostileObjects is how many Services a hostile tenant has, in parts of hostilePart.
const (
	hostileObjects = 1000
	hostilePart    = 100
	// hostilePorts is how many ports one of them has. etcd takes requests of 1.5 MiB, and an API server
	// stores each port twice, in the managed fields too.
	hostilePorts = 4096
)

// hostileParts is how many parts of Services the tenant has. Beside kube-proxy it is one: kube-proxy writes all its
// rules again for each change of many Services, more than the observer can read in time.
func (c *cell) hostileParts() int {
	if c.feature.proxy != "" {
		return 1
	}
	return hostileObjects / hostilePart
}

// floodObjects creates the objects of a hostile tenant, and deletes them: many with mistakes that
// ask for the address of the cell, and some as large as the API server accepts.
func floodObjects(ctx context.Context, c *cell) (err error) {
	files := c.hostileLarge()
	if c.feature.proxy != "" {
		delete(files, "hostile-ports") // for the same reason
	}
	for i := range c.hostileParts() {
		files[fmt.Sprintf("hostile%d", i)] = c.hostileMany(i * hostilePart)
	}
	if err := c.Cluster.PutText("hostile", "apiVersion: v1\nkind: Namespace\nmetadata: {name: evil}\n"); err != nil {
		return err
	}
	for name, text := range files {
		err = errors.Join(err, c.Cluster.PutText(name, text))
	}
	err = errors.Join(err, c.awaitReported(ctx, "evil/s0"), pause(ctx, 500*time.Millisecond))
	for name := range files {
		err = errors.Join(err, c.Cluster.Delete(name))
	}
	return errors.Join(err, c.Cluster.Delete("hostile"))
}

// hostileMany are Services, from a number on, with as many mistakes as are reported of an object.
func (c *cell) hostileMany(from int) string {
	var b strings.Builder
	for i := from; i < from+hostilePart; i++ {
		var wrong []string
		for j := range 25 {
			wrong = append(wrong, fmt.Sprintf("wrong-%d-%d", i, j))
		}
		fmt.Fprintf(&b, `---
apiVersion: v1
kind: Service
metadata:
  name: s%d
  namespace: evil
  annotations:
    fanfare.io/bgp-communities: %s
    fanfare.io/load-balancer-ips: %s
    fanfare.io/allow-shared-ip: web
spec: {type: LoadBalancer, allocateLoadBalancerNodePorts: false, ports: [{port: 80}]}
`, i, strings.Join(wrong, ","), c.vip)
	}
	return b.String()
}

// hostileLarge are objects with many ports, and with as many ranges and endpoints as the API server
// accepts, or an address can have.
func (c *cell) hostileLarge() map[string]string {
	service := func(name, annotation string, more ...string) string {
		return fmt.Sprintf("---\napiVersion: v1\nkind: Service\nmetadata: {name: %s, namespace: evil, annotations: "+
			"{%s}}\nspec: {type: LoadBalancer, allocateLoadBalancerNodePorts: false, %s}\n",
			name, annotation, strings.Join(more, ", "))
	}
	list := func(n int, item func(i int) string) string {
		all := make([]string, n)
		for i := range all {
			all[i] = item(i)
		}
		return "[" + strings.Join(all, ", ") + "]"
	}
	ports := "ports: " + list(hostilePorts, func(i int) string { return fmt.Sprintf("{name: p%d, port: %d}", i, i+1) })
	ranges := "loadBalancerSourceRanges: " +
		list(16_384, func(i int) string { return fmt.Sprintf("10.%d.%d.%d/32", i>>16, i>>8&255, i&255) })
	endpoints := list(1000, func(i int) string {
		return fmt.Sprintf("{addresses: [10.201.%d.%d], nodeName: %s}", i>>8, i&255, c.node)
	})
	slice := fmt.Sprintf("---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: many, "+
		"namespace: evil, labels: {kubernetes.io/service-name: ports}}\naddressType: IPv4\nports: [{name: p0, port: "+
		"80, protocol: TCP}]\nendpoints: %s\n", endpoints)
	return map[string]string{
		"hostile-ports":  service("ports", "", ports) + slice,
		"hostile-ranges": service("ranges", "", "ports: [{port: 80}]", ranges),
		"hostile-list": service("list", "fanfare.io/load-balancer-ips: "+`"`+strings.Repeat("192.0.2.1, ", 20_000)+
			`"`, "ports: [{port: 80}]"),
	}
}
