package l2

import (
	"errors"
	"fmt"

	"github.com/mdlayher/arp"
	"github.com/mdlayher/ethernet"
	"golang.org/x/sys/unix"
)

var arpProtocol = &protocol{
	name:      "arp",
	etherType: unix.ETH_P_ARP,
	parse:     parseARP,
	marshal:   marshalARP,
	filter:    filterARP,
}

func parseARP(frame []byte) (packet, error) {
	var f ethernet.Frame
	if err := f.UnmarshalBinary(frame); err != nil {
		return packet{}, err
	}
	if f.EtherType != ethernet.EtherTypeARP {
		return packet{}, fmt.Errorf("EtherType %#04x", uint16(f.EtherType))
	}
	var a arp.Packet
	if err := a.UnmarshalBinary(f.Payload); err != nil {
		return packet{}, err
	}
	if a.HardwareType != unix.ARPHRD_ETHER || a.ProtocolType != unix.ETH_P_IP || a.HardwareAddrLength != 6 ||
		a.IPLength != 4 {
		return packet{}, errors.New("not IPv4 over Ethernet")
	}
	p := packet{
		from: MAC(a.SenderHardwareAddr), to: MAC(f.Destination), about: MAC(a.TargetHardwareAddr),
		sender: a.SenderIP, target: a.TargetIP,
	}
	switch a.Operation {
	case arp.OperationRequest:
		p.op = opRequest
	case arp.OperationReply:
		p.op = opReply
	default:
		return packet{}, fmt.Errorf("operation %d", a.Operation)
	}
	return p, p.check()
}

func marshalARP(p packet) ([]byte, error) {
	operation := arp.OperationRequest
	if p.op == opReply {
		operation = arp.OperationReply
	}
	a, err := arp.NewPacket(operation, p.from[:], p.sender, p.about[:], p.target)
	if err != nil {
		return nil, err
	}
	payload, err := a.MarshalBinary()
	if err != nil {
		return nil, err
	}
	return (&ethernet.Frame{Destination: p.to[:], Source: p.from[:], EtherType: ethernet.EtherTypeARP,
		Payload: payload}).MarshalBinary()
}
