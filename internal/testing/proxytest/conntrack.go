package proxytest

import (
	"encoding/binary"
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/kernel/nfnl"
)

// Of linux/netfilter/nfnetlink_conntrack.h. Package conntrack, whose tests use this package, has
// some of them.
const (
	ctNew                                         = 0
	ctaTupleOrig, ctaTupleReply                   = 1, 2
	ctaStatus, ctaTimeout                         = 3, 7
	ctaTupleIP, ctaTupleProto                     = 1, 2
	ctaIPv4Src, ctaIPv4Dst                        = 1, 2
	ctaProtoNum, ctaProtoSrcPort, ctaProtoDstPort = 1, 2, 3
	ctSeenReply, ctAssured, ctConfirmed           = 1 << 1, 1 << 2, 1 << 3
)

// FillConntrack adds the conntrack entries with numbers from n up to want: UDP flows that nothing can
// evict, for 600 s. Where the table is full, the rest is missing.
func FillConntrack(t testing.TB, n, want int) {
	t.Helper()
	s, err := nfnl.Dial()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	const batch = 2000
	for ; n < want; n += batch {
		var e nfnl.Encoder
		for i := n; i < min(n+batch, want); i++ {
			s.Seq++
			addFlow(&e, s.Seq, uint32(0x0a630000)+uint32(i>>14), uint16(1+i&(1<<14-1)))
		}
		if err := s.Send(e.B); err != nil {
			t.Fatal(err)
		}
		for r, err := range s.Replies(false) {
			if err == nil && r.Kind == unix.NLMSG_ERROR {
				err = r.Errno()
			}
			if err != nil && !errors.Is(err, unix.ENOMEM) {
				t.Fatal(err)
			}
		}
	}
}

// addFlow adds a flow from an address and port to port 53 of 10.100.0.1.
func addFlow(e *nfnl.Encoder, seq, from uint32, port uint16) {
	const server, dns = 0x0a640001, 53
	e.Message(unix.NFNL_SUBSYS_CTNETLINK, ctNew, unix.NLM_F_REQUEST|unix.NLM_F_CREATE, seq, unix.AF_INET, func() {
		addTuple(e, ctaTupleOrig, from, server, port, dns)
		addTuple(e, ctaTupleReply, server, from, dns, port)
		e.Uint32(ctaStatus, ctSeenReply|ctAssured|ctConfirmed)
		e.Uint32(ctaTimeout, 600)
	})
}

func addTuple(e *nfnl.Encoder, kind uint16, from, to uint32, sport, dport uint16) {
	at := e.Open(kind)
	ip := e.Open(ctaTupleIP)
	e.Uint32(ctaIPv4Src, from)
	e.Uint32(ctaIPv4Dst, to)
	e.Close(ip)
	proto := e.Open(ctaTupleProto)
	e.Bytes(ctaProtoNum, []byte{unix.IPPROTO_UDP})
	e.Bytes(ctaProtoSrcPort, binary.BigEndian.AppendUint16(nil, sport))
	e.Bytes(ctaProtoDstPort, binary.BigEndian.AppendUint16(nil, dport))
	e.Close(proto)
	e.Close(at)
}
