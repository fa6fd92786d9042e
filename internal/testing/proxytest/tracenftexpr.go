package proxytest

import (
	"fmt"
	"math"
	"net/netip"
	"strconv"
	"strings"

	"github.com/fanfare-lb/fanfare/proxy/state"
)

// match reads a test, such as "ip daddr != @vips4", or a vmap.
func (in *nftReader) match() (nftStatement, error) {
	key, err := in.concat()
	if err != nil {
		return nil, err
	}
	if in.take("vmap") {
		set, err := in.set()
		if err != nil {
			return nil, err
		}
		return func(x *nftRun) nftVerdict {
			k, ok := key(x)
			v, found := set.get(k)
			if !ok || !found {
				return nftVerdict{kind: "miss"}
			}
			kind, chain, _ := strings.Cut(v, " ")
			return nftVerdict{kind, chain}
		}, nil
	}
	equal := in.take("==") || !in.take("!=")
	is, err := in.operand()
	if err != nil {
		return nil, err
	}
	return func(x *nftRun) nftVerdict {
		if k, ok := key(x); !ok || is(k) != equal {
			return nftVerdict{kind: "miss"}
		}
		return nftVerdict{}
	}, nil
}

// operand reads what a test compares with: @set, a value or a range.
func (in *nftReader) operand() (func(string) bool, error) {
	if len(in.words) > 0 && strings.HasPrefix(in.words[0], "@") {
		set, err := in.set()
		if err != nil {
			return nil, err
		}
		return func(k string) bool { _, ok := set.get(k); return ok }, nil
	}
	w := in.next()
	if w == "" || w == "{" || strings.Contains(w, ",") {
		return nil, fmt.Errorf("operand %q is not known", w)
	}
	return func(k string) bool { return within(w, k) }, nil
}

// concat reads expressions joined by dots.
func (in *nftReader) concat() (nftExpr, error) {
	var parts []nftExpr
	for {
		e, err := in.expr()
		if err != nil {
			return nil, err
		}
		parts = append(parts, e)
		if !in.take(".") {
			break
		}
	}
	return func(x *nftRun) (string, bool) {
		var words []string
		for _, part := range parts {
			w, ok := part(x)
			if !ok {
				return "", false
			}
			words = append(words, w)
		}
		return strings.Join(words, " . "), true
	}, nil
}

// expr reads one expression.
func (in *nftReader) expr() (nftExpr, error) {
	if in.take("jhash") {
		of, err := in.concat()
		if err != nil {
			return nil, err
		}
		if in.take("mod 4294967295 seed 0xfa17") {
			return func(x *nftRun) (string, bool) { w, ok := of(x); return nftHash(w), ok }, nil
		}
		// Any slot may come out: what it is computed from need only be known.
		choice, err := in.choice()
		_ = in.take("seed") && in.next() != ""
		return choice, err
	}
	if in.take("numgen random") || in.take("numgen inc") {
		return in.choice()
	}
	for words, e := range nftExprs {
		if in.take(words) {
			return e, nil
		}
	}
	return nil, fmt.Errorf("expression %q is not known", strings.Join(in.words, " "))
}

// nftHash is the hash of an IPv6 address that stands for it in a key.
func nftHash(addr string) string {
	a, err := netip.ParseAddr(addr)
	if err != nil {
		return ""
	}
	return strconv.FormatUint(uint64(state.KernelHash(a.AsSlice(), math.MaxUint32)), 10)
}

// choice reads the modulus of what chooses a slot.
func (in *nftReader) choice() (nftExpr, error) {
	if !in.take("mod") {
		return nil, fmt.Errorf("modulus expected at %q", strings.Join(in.words, " "))
	}
	n, err := strconv.Atoi(in.next())
	return func(x *nftRun) (string, bool) { return strconv.Itoa(x.c.choose(n)), true }, err
}

// nftExprs are the expressions without arguments. None is the beginning of
// another.
var nftExprs = map[string]nftExpr{
	"ip saddr":              func(x *nftRun) (string, bool) { return nftAddr(x, x.p.Src, true) },
	"ip daddr":              func(x *nftRun) (string, bool) { return nftAddr(x, x.p.Dst, true) },
	"ip6 saddr":             func(x *nftRun) (string, bool) { return nftAddr(x, x.p.Src, false) },
	"ip6 daddr":             func(x *nftRun) (string, bool) { return nftAddr(x, x.p.Dst, false) },
	"ct original ip daddr":  func(x *nftRun) (string, bool) { return nftAddr(x, x.p.ct.orig, true) },
	"ct original ip6 daddr": func(x *nftRun) (string, bool) { return nftAddr(x, x.p.ct.orig, false) },
	"ct original proto-dst": func(x *nftRun) (string, bool) { return strconv.Itoa(int(x.p.ct.orig.Port())), true },
	"meta nfproto":          nftFamily,
	"meta priority":         func(x *nftRun) (string, bool) { return x.p.priority, true },
	"meta l4proto":          func(x *nftRun) (string, bool) { return state.Protocol(x.p.proto).String(), true },
	"th sport":              func(x *nftRun) (string, bool) { return strconv.Itoa(int(x.p.Src.Port())), !isICMP(x.p) },
	"th dport":              func(x *nftRun) (string, bool) { return strconv.Itoa(int(x.p.Dst.Port())), !isICMP(x.p) },
	"tcp dport":             func(x *nftRun) (string, bool) { return nftPort(x, state.TCP) },
	"udp dport":             func(x *nftRun) (string, bool) { return nftPort(x, state.UDP) },
	"sctp dport":            func(x *nftRun) (string, bool) { return nftPort(x, state.SCTP) },
	"tcp flags & (fin|syn|rst|ack)": func(x *nftRun) (string, bool) {
		return map[bool]string{false: "syn", true: "ack"}[x.p.Midstream], x.p.proto == uint8(state.TCP)
	},

	"iifname":        func(x *nftRun) (string, bool) { return strconv.Quote(x.p.in), x.p.in != "" },
	"oifname":        func(x *nftRun) (string, bool) { return strconv.Quote(x.p.out), true },
	"ct state":       func(x *nftRun) (string, bool) { return x.p.ct.state, true },
	"ct status":      nftStatus,
	"fib daddr type": func(x *nftRun) (string, bool) { return nftFib(x, x.p.Dst), true },
	"fib saddr type": func(x *nftRun) (string, bool) { return nftFib(x, x.p.Src), true },
	"icmp type":      func(x *nftRun) (string, bool) { return nftICMP(x, protoICMP, 8) },
	"icmp code":      func(*nftRun) (string, bool) { return "0", true }, // of an echo request
	"icmpv6 type":    func(x *nftRun) (string, bool) { return nftICMP(x, protoICMPv6, 128) },
}

// nftAddr is an address of the packet, for rules of its family.
func nftAddr(x *nftRun, a netip.AddrPort, v4 bool) (string, bool) {
	return a.Addr().String(), a.Addr().Is4() == v4
}

func nftPort(x *nftRun, proto state.Protocol) (string, bool) {
	return strconv.Itoa(int(x.p.Dst.Port())), x.p.proto == uint8(proto)
}

func nftFamily(x *nftRun) (string, bool) {
	if x.p.Dst.Addr().Is4() {
		return "ipv4", true
	}
	return "ipv6", true
}

func isICMP(p *Packet) bool { return p.proto == protoICMP || p.proto == protoICMPv6 }

// nftStatus has the one bit that rules ask for.
func nftStatus(x *nftRun) (string, bool) {
	if x.p.ct.dnat {
		return "dnat", true
	}
	return "", true
}

func nftFib(x *nftRun, a netip.AddrPort) string {
	if x.node.local[a.Addr()] {
		return "local"
	}
	return "unicast"
}

func nftICMP(x *nftRun, proto uint8, echo int) (string, bool) {
	if x.p.icmp == echo {
		return "echo-request", x.p.proto == proto
	}
	return strconv.Itoa(x.p.icmp), x.p.proto == proto
}
