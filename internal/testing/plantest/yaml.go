package plantest

import (
	"fmt"
	"strings"
)

// TwoRouters has a pool that is announced by BGP, two routers and a node.
const TwoRouters = `
apiVersion: fanfare.io/v1alpha1
kind: AddressPool
metadata: {name: lan}
spec: {announce: BGP, addresses: [192.0.2.0/24]}
---
apiVersion: fanfare.io/v1alpha1
kind: BGPPeer
metadata: {name: tor1, uid: uid-tor1}
spec: {peerAddress: 10.0.0.1, peerASN: 65000, myASN: 65001}
---
apiVersion: fanfare.io/v1alpha1
kind: BGPPeer
metadata: {name: tor2, uid: uid-tor2}
spec: {peerAddress: 10.0.0.2, peerASN: 65000, myASN: 65001}
---
apiVersion: v1
kind: Node
metadata: {name: n1, uid: uid-n1}
status: {addresses: [{type: InternalIP, address: 10.0.0.11}]}
`

// Advertised is TwoRouters with announce Advertised.
var Advertised = strings.Replace(TwoRouters, "announce: BGP", "announce: Advertised", 1)

// LocalService is a Service with the policy Local and one endpoint, on the node.
func LocalService(name, uid, addr, node string) string {
	return fmt.Sprintf(`---
apiVersion: v1
kind: Service
metadata: {namespace: shop, name: %[1]s, uid: %[2]s}
spec: {type: LoadBalancer, externalTrafficPolicy: Local, ports: [{port: 80}]}
status: {loadBalancer: {ingress: [{ip: %[3]s}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: shop, name: %[1]s-1, labels: {kubernetes.io/service-name: %[1]s}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [10.244.1.5], nodeName: %[4]s, conditions: {ready: true}}]
`, name, uid, addr, node)
}

// HealthServices are two Services with a healthCheckNodePort, of which kube-proxy serves one.
const HealthServices = `
apiVersion: fanfare.io/v1alpha1
kind: AddressPool
metadata: {name: lan}
spec: {announce: L2, addresses: [192.0.2.0/24, "2001:db8::/64"]}
---
apiVersion: v1
kind: Service
metadata: {namespace: shop, name: a-ours, labels: {service.kubernetes.io/service-proxy-name: fanfare}}
spec:
  type: LoadBalancer
  externalTrafficPolicy: Local
  healthCheckNodePort: 32001
  ipFamilies: [IPv4, IPv6]
  ipFamilyPolicy: RequireDualStack
  ports: [{name: http, port: 80}, {name: https, port: 443}]
status: {loadBalancer: {ingress: [{ip: 192.0.2.1}, {ip: "2001:db8::1"}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: shop, name: a-4, labels: {kubernetes.io/service-name: a-ours}}
addressType: IPv4
ports: [{name: http, port: 8080}, {name: https, port: 8443}]
endpoints:
- {addresses: [10.244.1.1], nodeName: n1, conditions: {ready: true}}
- {addresses: [10.244.1.2], nodeName: n1, conditions: {ready: true}}
- {addresses: [10.244.1.3], nodeName: n1, conditions: {ready: false, serving: true, terminating: true}}
- {addresses: [10.244.2.1], nodeName: n2, conditions: {ready: true}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: shop, name: a-6, labels: {kubernetes.io/service-name: a-ours}}
addressType: IPv6
ports: [{name: http, port: 8080}, {name: https, port: 8443}]
endpoints:
- {addresses: ["fd00::3"], nodeName: n1, conditions: {ready: false, serving: true, terminating: true}}
---
apiVersion: v1
kind: Service
metadata: {namespace: shop, name: b-kube-proxys}
spec: {type: LoadBalancer, externalTrafficPolicy: Local, healthCheckNodePort: 32002, ports: [{port: 80}]}
status: {loadBalancer: {ingress: [{ip: 192.0.2.2}]}}
---
apiVersion: v1
kind: Service
metadata: {namespace: shop, name: c-cluster, labels: {service.kubernetes.io/service-proxy-name: fanfare}}
spec: {type: LoadBalancer, externalTrafficPolicy: Cluster, healthCheckNodePort: 32003, ports: [{port: 80}]}
status: {loadBalancer: {ingress: [{ip: 192.0.2.3}]}}
---
apiVersion: v1
kind: Service
metadata:
  namespace: shop
  name: d-waits # for an address of a pool that is to come
  labels: {service.kubernetes.io/service-proxy-name: fanfare}
  annotations: {fanfare.io/load-balancer-ips: 198.18.0.1}
spec: {type: LoadBalancer, externalTrafficPolicy: Local, healthCheckNodePort: 32004, clusterIPs: [10.96.0.4], ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: shop, name: d-4, labels: {kubernetes.io/service-name: d-waits}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [10.244.1.1], nodeName: n1, conditions: {ready: true}}]
`

// DuplicatePeers has two BGPPeers whose objects name the same router, and one whose
// router is the default gateway.
const DuplicatePeers = `
apiVersion: fanfare.io/v1alpha1
kind: AddressPool
metadata: {name: lan}
spec: {announce: BGP, addresses: [192.0.2.0/24]}
---
apiVersion: fanfare.io/v1alpha1
kind: BGPPeer
metadata: {name: tor1, uid: uid-tor1, creationTimestamp: "2026-01-02T00:00:00Z"}
spec: {peerAddress: 10.0.0.1, peerASN: 65000, myASN: 65001}
---
apiVersion: fanfare.io/v1alpha1
kind: BGPPeer
metadata: {name: gateway, uid: uid-gateway, creationTimestamp: "2026-01-03T00:00:00Z"}
spec: {defaultGateway: IPv4, peerASN: 65000, myASN: 65001}
---
apiVersion: v1
kind: Node
metadata: {name: n1, uid: uid-n1}
status: {addresses: [{type: InternalIP, address: 10.0.0.11}]}
---
`

// OlderPeer is an older BGPPeer of the first router of DuplicatePeers.
const OlderPeer = `
apiVersion: fanfare.io/v1alpha1
kind: BGPPeer
metadata: {name: tor2, uid: uid-tor2, creationTimestamp: "2026-01-01T00:00:00Z"}
spec: {peerAddress: 10.0.0.1, peerASN: 65000, myASN: 65001}
---
`
