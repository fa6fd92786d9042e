package proxytest

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/fanfare-lb/fanfare/proxy/state"
)

// part reads one match, or the target.
func (in *xtReader) part() (nftStatement, error) {
	not := in.take("!")
	switch w := in.next(); w {
	case "-d", "-s":
		p := xtPrefix(in.next())
		if !p.IsValid() {
			return nil, fmt.Errorf("no prefix")
		}
		return test(not, func(x *nftRun) bool {
			return p.Contains(map[string]netip.AddrPort{"-d": x.p.Dst, "-s": x.p.Src}[w].Addr())
		}), nil
	case "-i", "-o":
		name := in.next()
		return test(not, func(x *nftRun) bool {
			return ifaceIs(name, map[string]string{"-i": x.p.in, "-o": x.p.out}[w])
		}), nil
	case "-p":
		name := in.next()
		proto, ok := map[string]uint8{"tcp": uint8(state.TCP), "udp": uint8(state.UDP), "sctp": uint8(state.SCTP),
			"icmp": protoICMP, "ipv6-icmp": protoICMPv6}[name]
		if !ok {
			return nil, fmt.Errorf("protocol %s", name)
		}
		return test(not, func(x *nftRun) bool { return x.p.proto == proto }), nil
	case "-m":
		return in.match(in.next())
	case "-g", "-j":
		return in.target(w, in.next())
	default:
		return nil, fmt.Errorf("option %q is not known", w)
	}
}

// ifaceIs reports whether an interface is meant by a name, which may end in "+".
func ifaceIs(name, iface string) bool {
	if prefix, ok := strings.CutSuffix(name, "+"); ok {
		return strings.HasPrefix(iface, prefix)
	}
	return iface == name
}

// match reads the options of a match.
func (in *xtReader) match(name string) (nftStatement, error) {
	not := in.take("!")
	switch name {
	case "comment":
		_, err := in.options("--comment")
		return say("", ""), err
	case "set":
		return in.matchSet(not)
	case "tcp", "udp", "sctp":
		if len(in.words) > 0 && in.words[0] == "--tcp-flags" {
			return in.tcpFlags(not)
		}
		return in.number(not, "--dport", func(x *nftRun) int { return int(x.p.Dst.Port()) })
	case "icmp":
		return in.number(not, "--icmp-type", func(x *nftRun) int { return x.p.icmp })
	case "icmp6":
		return in.number(not, "--icmpv6-type", func(x *nftRun) int { return x.p.icmp })
	case "conntrack":
		return in.conntrack(not)
	case "addrtype":
		return in.addrtype(not)
	case "mark":
		args, err := in.options("--mark")
		if err != nil {
			return nil, err
		}
		m, err := parseXTMark(args[0])
		return test(not, func(x *nftRun) bool { return x.p.mark&m.Mask == m.Value }), err
	case "bpf":
		args, err := in.options("--bytecode")
		if err != nil {
			return nil, err
		}
		return program(not, args[0])
	case "statistic", "cluster":
		return in.chance(name)
	default:
		return nil, fmt.Errorf("match %s is not known", name)
	}
}

func (in *xtReader) number(not bool, option string, of func(*nftRun) int) (nftStatement, error) {
	args, err := in.options(option)
	if err != nil {
		return nil, err
	}
	if strings.Contains(args[0], "/") { // a code of ICMP, which no packet of a trace has
		return test(not, func(*nftRun) bool { return false }), nil
	}
	n, err := strconv.Atoi(args[0])
	return test(not, func(x *nftRun) bool { return of(x) == n }), err
}

// tcpFlags reads "--tcp-flags MASK SYN" with all flags that a first packet may not have
// but one.
func (in *xtReader) tcpFlags(not bool) (nftStatement, error) {
	args, err := in.options("--tcp-flags")
	is := in.next()
	if err == nil && (args[0] != "FIN,SYN,RST,ACK" || is != "SYN" && is != "SYN,ACK") {
		err = fmt.Errorf("flags %s of %s are not known", is, args[0])
	}
	if is == "SYN,ACK" { // which no packet of a trace has
		return test(not, func(*nftRun) bool { return false }), err
	}
	return test(not, func(x *nftRun) bool { return x.p.proto == uint8(state.TCP) && !x.p.Midstream }), err
}

// matchSet reads "--match-set NAME dst,dst,src", or with "src,src".
func (in *xtReader) matchSet(not bool) (nftStatement, error) {
	args, err := in.options("--match-set")
	if err != nil {
		return nil, err
	}
	set, flags := in.family.sets[args[0]], in.next()
	if set == nil {
		return nil, fmt.Errorf("no set %s", args[0])
	}
	if !slices.Contains([]string{"src", "src,src", "dst", "dst,dst", "dst,dst,src"}, flags) {
		return nil, fmt.Errorf("%s of a set is not known", flags)
	}
	return test(not, func(x *nftRun) bool {
		for k := range set {
			if k.meets(x.p, flags) {
				return true
			}
		}
		return false
	}), nil
}

func (k xtKey) meets(p *Packet, flags string) bool {
	switch {
	case flags == "src":
		return k.addr.Contains(p.Src.Addr())
	case flags == "src,src":
		return k.addr.Contains(p.Src.Addr()) && !isICMP(p) && k.port == state.Port{
			Proto: state.Protocol(p.proto), Port: p.Src.Port(),
		}
	case !k.addr.Contains(p.Dst.Addr()):
		return false
	case flags == "dst":
		return true
	case isICMP(p) || k.port != state.Port{Proto: state.Protocol(p.proto), Port: p.Dst.Port()}:
		return false
	}
	return flags == "dst,dst" || k.net.Contains(p.Src.Addr())
}

// conntrack reads "--ctstate STATE" and "--ctorigdst PREFIX", both if there are two.
func (in *xtReader) conntrack(not bool) (nftStatement, error) {
	var tests []func(*nftRun) bool
	for len(in.words) > 0 && strings.HasPrefix(in.words[0], "--ct") {
		option, arg := in.next(), in.next()
		p := xtPrefix(arg)
		switch {
		case option == "--ctstate" && arg == "INVALID":
			tests = append(tests, func(x *nftRun) bool { return x.p.ct.state == "invalid" })
		case option == "--ctstate" && arg == "DNAT":
			tests = append(tests, func(x *nftRun) bool { return x.p.ct.dnat })
		case option == "--ctorigdst" && p.IsValid():
			tests = append(tests, func(x *nftRun) bool { return p.Contains(x.p.ct.orig.Addr()) })
		default:
			return nil, fmt.Errorf("%s %s is not known", option, arg)
		}
	}
	if not || len(tests) == 0 {
		return nil, fmt.Errorf("conntrack without a state that is known")
	}
	return test(false, func(x *nftRun) bool {
		return !slices.ContainsFunc(tests, func(is func(*nftRun) bool) bool { return !is(x) })
	}), nil
}

func (in *xtReader) addrtype(not bool) (nftStatement, error) {
	option, kind := in.next(), in.next()
	if kind != "LOCAL" || option != "--dst-type" && option != "--src-type" {
		return nil, fmt.Errorf("%s %s is not known", option, kind)
	}
	return test(not, func(x *nftRun) bool {
		return x.node.local[map[string]netip.AddrPort{"--dst-type": x.p.Dst, "--src-type": x.p.Src}[option].Addr()]
	}), nil
}

// chance reads the options of a match that depends on chance, or on a hash. Either may
// come out.
func (in *xtReader) chance(name string) (nftStatement, error) {
	names := []string{"--cluster-local-nodemask", "--cluster-total-nodes", "--cluster-hash-seed"}
	if name == "statistic" {
		switch in.take("--mode"); in.next() {
		case "random":
			names = []string{"--probability"}
		case "nth":
			names = []string{"--every", "--packet"}
		default:
			return nil, fmt.Errorf("mode of statistic is not known")
		}
	}
	_, err := in.options(names...)
	return test(false, func(x *nftRun) bool { return x.c.choose(2) == 0 }), err
}

// FilterProgram is a program of the packet filter over the packet's header.
func FilterProgram(text string) (is func(*Packet) bool, err error) {
	var raw []bpf.RawInstruction
	for _, op := range strings.Split(text, ",")[1:] {
		var i bpf.RawInstruction
		if _, err := fmt.Sscan(op, &i.Op, &i.Jt, &i.Jf, &i.K); err != nil {
			return nil, fmt.Errorf("%q: %w", op, err)
		}
		raw = append(raw, i)
	}
	program, ok := bpf.Disassemble(raw)
	if !ok {
		return nil, fmt.Errorf("a program with instructions that are not known")
	}
	vm, err := bpf.NewVM(program)
	if err != nil {
		return nil, err
	}
	return func(p *Packet) bool {
		// Of the part of a header before its addresses only the length is of interest.
		header := slices.Concat([]byte{0x45}, make([]byte, 11), p.Src.Addr().AsSlice(), p.Dst.Addr().AsSlice())
		if p.Dst.Addr().Is6() {
			header = header[4:]
		}
		header = binary.BigEndian.AppendUint16(header, p.Src.Port())
		n, err := vm.Run(header)
		if err != nil {
			panic(fmt.Sprintf("program %s: %v", text, err))
		}
		return n != 0
	}, nil
}

// program reads a program that compares addresses, or hashes them. Of a hash anything may
// come out.
func program(not bool, text string) (nftStatement, error) {
	is, err := FilterProgram(text)
	if strings.Contains(text, fmt.Sprintf(",%d 0 0 ", unix.BPF_ALU|unix.BPF_MOD)) {
		return test(not, func(x *nftRun) bool { return x.c.choose(2) == 0 }), err
	}
	return test(not, func(x *nftRun) bool { return is(x.p) }), err
}

// parseXTMark reads "0x4000/0x4000" or "0x4000".
func parseXTMark(s string) (state.Mark, error) {
	value, mask, _ := strings.Cut(s, "/")
	v, err := strconv.ParseUint(value, 0, 32)
	if err != nil {
		return state.Mark{}, err
	}
	m, err := strconv.ParseUint(cmp.Or(mask, "0xffffffff"), 0, 32)
	return state.Mark{Value: uint32(v), Mask: uint32(m)}, err
}
