package bgp

import (
	"encoding/binary"
	"fmt"
	"time"
)

// A bfdState is a session state of RFC 5880 section 4.1.
type bfdState uint8

const (
	bfdAdminDown bfdState = iota
	bfdDown
	bfdInit
	bfdUp
)

func (s bfdState) String() string {
	return [...]string{"AdminDown", "Down", "Init", "Up"}[s&3]
}

// A bfdDiagnostic says why a session last left the state Up (RFC 5880 section 4.1). Only the values
// that this package sends or reads have names.
type bfdDiagnostic uint8

const (
	bfdNoDiagnostic      bfdDiagnostic = 0
	bfdDetectionExpired  bfdDiagnostic = 1
	bfdNeighborSaysDown  bfdDiagnostic = 3
	bfdAdministratively  bfdDiagnostic = 7
	bfdDiagnosticMaximum bfdDiagnostic = 31
)

// A bfdPacket is a BFD control packet without authentication. The bits for demand mode and
// for control plane independence, and the echo interval, are zero when sent and ignored when
// received: this package has none of these features.
type bfdPacket struct {
	state         bfdState
	diagnostic    bfdDiagnostic
	poll, final   bool
	multiplier    uint8
	local, remote uint32 // discriminators of the sender (My) and of the receiver (Your)
	bfdIntervals         // of the sender
}

// bfdIntervals are the capabilities of one end: Desired Min TX Interval and Required Min RX
// Interval.
type bfdIntervals struct {
	transmit, receive time.Duration
}

const (
	bfdVersion      = 1
	bfdPacketLength = 24

	bfdPollBit           = 0x20
	bfdFinalBit          = 0x10
	bfdAuthenticationBit = 0x04
	bfdMultipointBit     = 0x01
)

// parseBFD reads a control packet. An error is a reason to discard the packet in any session (RFC
// 5880 section 6.8.6).
func parseBFD(b []byte) (bfdPacket, error) {
	if len(b) < bfdPacketLength {
		return bfdPacket{}, fmt.Errorf("BFD packet: %d bytes, want %d or more", len(b), bfdPacketLength)
	}
	if n := int(b[3]); n < bfdPacketLength || n > len(b) {
		return bfdPacket{}, fmt.Errorf("BFD packet: length field %d, want %d to %d", n, bfdPacketLength, len(b))
	}
	p := bfdPacket{
		state: bfdState(b[1] >> 6), diagnostic: bfdDiagnostic(b[0]) & bfdDiagnosticMaximum,
		poll: b[1]&bfdPollBit != 0, final: b[1]&bfdFinalBit != 0,
		multiplier: b[2],
		local:      binary.BigEndian.Uint32(b[4:]), remote: binary.BigEndian.Uint32(b[8:]),
		bfdIntervals: bfdIntervals{transmit: microseconds(b[12:]), receive: microseconds(b[16:])},
	}
	switch {
	case b[0]>>5 != bfdVersion:
		return p, fmt.Errorf("BFD packet: version %d, want %d", b[0]>>5, bfdVersion)
	case b[1]&bfdAuthenticationBit != 0:
		return p, fmt.Errorf("BFD packet: authenticated, but this node has no BFD authentication")
	case b[1]&bfdMultipointBit != 0:
		return p, fmt.Errorf("BFD packet: multipoint bit is set, want 0")
	case p.multiplier == 0:
		return p, fmt.Errorf("BFD packet: detection multiplier 0, want 1 or more")
	case p.local == 0:
		return p, fmt.Errorf("BFD packet: my discriminator 0, want another value")
	case p.remote == 0 && p.state != bfdDown && p.state != bfdAdminDown:
		return p, fmt.Errorf("BFD packet: your discriminator 0 in state %s, want Down or AdminDown", p.state)
	}
	return p, nil
}

func microseconds(b []byte) time.Duration {
	return time.Duration(binary.BigEndian.Uint32(b)) * time.Microsecond
}

// bytes encodes the packet (RFC 5880 section 4.1).
func (p bfdPacket) bytes() []byte {
	b := make([]byte, bfdPacketLength)
	b[0] = bfdVersion<<5 | byte(p.diagnostic)
	b[1] = byte(p.state) << 6
	if p.poll {
		b[1] |= bfdPollBit
	}
	if p.final {
		b[1] |= bfdFinalBit
	}
	b[2], b[3] = p.multiplier, bfdPacketLength
	binary.BigEndian.PutUint32(b[4:], p.local)
	binary.BigEndian.PutUint32(b[8:], p.remote)
	binary.BigEndian.PutUint32(b[12:], uint32(p.transmit.Microseconds()))
	binary.BigEndian.PutUint32(b[16:], uint32(p.receive.Microseconds()))
	return b
}
