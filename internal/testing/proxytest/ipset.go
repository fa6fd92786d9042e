package proxytest

import (
	"encoding/binary"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/internal/kernel/nfnl"
	"github.com/fanfare-lb/fanfare/proxy/state"
)

// ipsetCommands are numbers of linux/netfilter/ipset/ip_set.h.
var ipsetCommands = map[string]uint8{"create": 2, "destroy": 3, "flush": 4, "swap": 6, "add": 9, "del": 10}

const (
	ipsetList      = 7
	ipsetProtocol  = 1
	ipsetName      = 2
	ipsetKind      = 3 // and the other set of a swap
	ipsetRevision  = 4
	ipsetFamily    = 5
	ipsetFlags     = 6
	ipsetData      = 7
	ipsetLine      = 9
	ipsetNames     = 1 << 1
	ipsetNoMatch   = 1 << 2
	ipsetIP        = 1
	ipsetCIDR      = 3
	ipsetPort      = 4
	ipsetTimeout   = 6
	ipsetProto     = 7
	ipsetOptions   = 8
	ipsetMaxElem   = 19
	ipsetIP2       = 20
	ipsetCIDR2     = 21
	ipsetInNetwork = unix.NLA_F_NET_BYTEORDER
)

// IPSet does what the program ipset does for a line of its input, such as
//
//	create NAME hash:ip [inet6] [timeout 1h]
//	add NAME 192.0.2.1,tcp:80,10.0.0.0/8 [nomatch]
//	del NAME ENTRY, flush NAME, destroy NAME, swap NAME NAME
func IPSet(tb testing.TB, line string) {
	tb.Helper()
	words := strings.Fields(line)
	s, err := nfnl.Dial()
	if err != nil {
		tb.Fatal(err)
	}
	defer s.Close()
	flags := uint16(unix.NLM_F_REQUEST | unix.NLM_F_ACK)
	if words[0] == "create" {
		flags |= unix.NLM_F_CREATE | unix.NLM_F_EXCL
	}
	s.Seq++
	var e nfnl.Encoder
	e.Message(unix.NFNL_SUBSYS_IPSET, ipsetCommands[words[0]], flags, s.Seq, unix.NFPROTO_IPV4, func() {
		e.Bytes(ipsetProtocol, []byte{6})
		e.Text(ipsetName, words[1])
		switch words[0] {
		case "create":
			encodeSet(tb, &e, words[2], words[3:])
		case "swap":
			e.Text(ipsetKind, words[2])
		case "add", "del":
			encodeEntry(tb, &e, words[2], words[3:])
			e.Uint32(ipsetLine, 0)
		}
	})
	if err := s.Send(e.B); err != nil {
		tb.Fatal(err)
	}
	for r, err := range s.Replies(false) {
		if err == nil && r.Kind == unix.NLMSG_ERROR && r.Seq == s.Seq {
			err = r.Errno()
		}
		if err != nil {
			tb.Fatalf("ipset %s: %v", line, err)
		}
	}
}

func encodeSet(tb testing.TB, e *nfnl.Encoder, kind string, options []string) {
	family := byte(unix.NFPROTO_IPV4)
	e.Text(ipsetKind, kind)
	e.Bytes(ipsetRevision, []byte{0})
	at := e.Open(ipsetData)
	e.Uint32(ipsetMaxElem|ipsetInNetwork, 1<<20)
	for i, o := range options {
		switch o {
		case "inet6":
			family = unix.NFPROTO_IPV6
		case "timeout":
			d, err := time.ParseDuration(options[i+1])
			if err != nil {
				tb.Fatal(err)
			}
			e.Uint32(ipsetTimeout|ipsetInNetwork, uint32(d.Seconds()))
		}
	}
	e.Close(at)
	e.Bytes(ipsetFamily, []byte{family})
}

func encodeEntry(tb testing.TB, e *nfnl.Encoder, entry string, options []string) {
	address := func(ip, cidr uint16, text string) {
		p := xtPrefix(text)
		if !p.IsValid() {
			tb.Fatalf("entry %s: no address %q", entry, text)
		}
		at := e.Open(ip)
		e.Bytes(uint16(state.Family(p.Addr())+1)|ipsetInNetwork, p.Addr().AsSlice()) // IPSET_ATTR_IPADDR_IPV4 or IPV6
		e.Close(at)
		if strings.Contains(text, "/") {
			e.Bytes(cidr, []byte{byte(p.Bits())})
		}
	}
	parts := strings.Split(entry, ",")
	at := e.Open(ipsetData)
	address(ipsetIP, ipsetCIDR, parts[0])
	if len(parts) > 1 {
		proto, number, _ := strings.Cut(parts[1], ":")
		n, err := strconv.ParseUint(number, 10, 16)
		if err != nil {
			tb.Fatal(err)
		}
		e.Bytes(ipsetPort|ipsetInNetwork, binary.BigEndian.AppendUint16(nil, uint16(n)))
		e.Bytes(ipsetProto, []byte{byte(sceneProtocols[proto][0])})
	}
	if len(parts) > 2 {
		address(ipsetIP2, ipsetCIDR2, parts[2])
	}
	if len(options) > 0 && options[0] == "nomatch" {
		e.Uint32(ipsetOptions|ipsetInNetwork, ipsetNoMatch)
	}
	e.Close(at)
}

// IPSets are the names of Fanfare's sets in the kernel.
func IPSets(tb testing.TB) (names []string) {
	tb.Helper()
	s, err := nfnl.Dial()
	if err != nil {
		tb.Fatal(err)
	}
	defer s.Close()
	var e nfnl.Encoder
	e.Bytes(ipsetProtocol, []byte{6})
	e.Uint32(ipsetFlags|ipsetInNetwork, ipsetNames)
	err = s.Dump(unix.NFNL_SUBSYS_IPSET, ipsetList, unix.NFPROTO_IPV4, e.B, func(data []byte) {
		if name := nfnl.CString(nfnl.Attribute(data, ipsetName)); strings.HasPrefix(name, xtSetPrefix) {
			names = append(names, name)
		}
	})
	if err != nil {
		tb.Fatal(err)
	}
	return names
}

// xtSetPrefix begins the names of all sets. xtSets are the sets that always exist, with their
// types.
const xtSetPrefix = "fanfare-"

var xtSets = map[string]string{
	"vips": "hash:ip", "owned": "hash:net", "clients": "hash:net", "never": "hash:net", "handon": "hash:ip",
	"limited": "hash:ip,port", "sources": "hash:ip,port,net",
	"xdrop": "hash:ip,port", "idrop": "hash:ip,port", "xreject": "hash:ip,port", "ireject": "hash:ip,port",
	"replies": "hash:ip,port", "repliers": "hash:ip",
}

// CreateIPSets makes all sets of a family, with a timeout, which ours have not.
func CreateIPSets(tb testing.TB, f state.SetID) {
	tb.Helper()
	for name, kind := range xtSets {
		line := "create " + xtSetPrefix + name + "46"[f:f+1] + " " + kind + " timeout 24h"
		if f == 1 {
			line += " inet6"
		}
		IPSet(tb, line)
	}
}

// xtPrefix reads a prefix or an address; it is invalid for any other text.
func xtPrefix(s string) netip.Prefix {
	if a, err := netip.ParseAddr(s); err == nil {
		return netip.PrefixFrom(a, a.BitLen())
	}
	p, _ := netip.ParsePrefix(s)
	return p
}
