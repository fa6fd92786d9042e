package lab

import (
	"net"
	"net/netip"
	"time"

	"github.com/fanfare-lb/fanfare/e2e/observer"
)

// segment is the router's interface to the nodes.
const segment = "br0"

// observe starts the recording of everything that the nodes and the router do.
func (l *Lab) observe() (*observer.Observer, error) {
	nodes := map[string]observer.Namespace{}
	for _, n := range NodeNames {
		nodes[n] = l.namespaces[n]
	}
	return observer.New(observer.Config{Nodes: nodes, Router: l.Router.Namespace, Segment: segment, Links: l.links(),
		NodeOf: nodeName, NextHop: l.Router.nextHop})
}

// links returns the nodes with a link of their own to the router, by its interface.
func (l *Lab) links() map[string]string {
	by := map[string]string{}
	for _, node := range l.Router.direct {
		by[directInterface+node[1:]] = node
	}
	return by
}

// SendDelay bounds the time from a speaker's decision to withdraw to the arrival of the message
// at the router, for this lab.
func (l *Lab) SendDelay() time.Duration { return l.within(observer.SendDelay) }

// WatchClaims sends requests for addresses from the host, and records which nodes claim them.
func (l *Lab) WatchClaims(vips ...netip.Addr) (*observer.Claims, error) {
	return l.Observer.WatchClaims(l.namespaces["host"], "eth1", l.hardwareAddresses(), vips...)
}

// WatchPaths records to which nodes the router, and the host if there is one, send the packets
// to an address.
func (l *Lab) WatchPaths(vip netip.Addr) (*observer.Paths, error) {
	taps := []observer.Tap{{Namespace: l.Router.Namespace, Interface: segment}}
	for iface := range l.links() {
		taps = append(taps, observer.Tap{Namespace: l.Router.Namespace, Interface: iface})
	}
	if host := l.namespaces["host"]; host != nil {
		taps = append(taps, observer.Tap{Namespace: host, Interface: "eth1"})
	}
	return observer.WatchPaths(taps, l.hardwareAddresses(), vip)
}

// hardwareAddresses returns the nodes by the hardware addresses of their interfaces.
func (l *Lab) hardwareAddresses() map[string]string {
	by := map[string]string{}
	for _, n := range NodeNames {
		for _, iface := range []string{"eth1", directInterface + "0"} {
			if mac, err := l.hardwareAddress(n, iface); err == nil {
				by[mac] = n
			}
		}
	}
	return by
}

// hardwareAddress returns the address of a node's interface.
func (l *Lab) hardwareAddress(node, iface string) (mac string, err error) {
	err = l.namespaces[node].Do(func() error {
		i, err := net.InterfaceByName(iface)
		if err == nil {
			mac = i.HardwareAddr.String()
		}
		return err
	})
	return mac, err
}
