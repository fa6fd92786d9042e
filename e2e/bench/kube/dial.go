package kube

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"

	"github.com/fanfare-lb/fanfare/speaker/rundir"
)

func (b *bench) dial(ctx context.Context, node, to string) (net.Conn, error) {
	addr, err := netip.ParseAddrPort(to)
	if err != nil {
		return nil, err
	}
	return b.Namespace(node).Dial(ctx, "tcp", netip.AddrPort{}, addr)
}

func dialUnix(ctx context.Context, runDir string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "unix", rundir.SocketPath(runDir))
}

// endpoint returns an endpoint as it appears in the rules and maps of both programs:
// address . port.
func endpoint(a netip.Addr) []byte {
	return binary.BigEndian.AppendUint16(a.AsSlice(), podPort)
}

// chainOf returns a part of the names of kube-proxy's chains for a Service.
func chainOf(service string) []byte { return []byte("/" + service + "/") }
