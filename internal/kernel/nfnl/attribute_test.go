package nfnl

import (
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// What an Encoder writes, Attribute reads.
func TestAttributes(t *testing.T) {
	var e Encoder
	e.Text(1, "fanfare")
	at := e.Open(2)
	e.Uint32(1, 0x01020304)
	e.Opaque(2, "\x00\xff\x00")
	e.Close(at)
	e.Bytes(3|unix.NLA_F_NET_BYTEORDER, nil)
	if len(e.B)%4 != 0 {
		t.Errorf("%d bytes are not aligned", len(e.B))
	}
	if got := CString(Attribute(e.B, 1)); got != "fanfare" {
		t.Errorf("text %q", got)
	}
	if got := Uint32(Attribute(e.B, 2, 1)); got != 0x01020304 {
		t.Errorf("nested number %#x", got)
	}
	if got := string(Attribute(e.B, 2, 2)); got != "\x00\xff\x00" {
		t.Errorf("nested bytes %q", got)
	}
	if got := Attribute(e.B, 3); got == nil || len(got) != 0 {
		t.Errorf("empty attribute %v, want empty and not nil", got)
	}
	for _, path := range [][]uint16{{4}, {1, 1}, {2, 3}} {
		if got := Attribute(e.B, path...); got != nil {
			t.Errorf("attribute %v is %v, want nil", path, got)
		}
	}
}

// A malformed attribute ends the list, and nothing panics.
func TestAttributesMalformed(t *testing.T) {
	var e Encoder
	e.Uint32(1, 7)
	good := e.B
	for name, tail := range map[string]string{
		"no header":           "\x05\x00\x02",
		"shorter than header": "\x03\x00\x02\x00",
		"longer than message": "\xff\x00\x02\x00",
	} {
		var got []uint16
		for kind := range Attributes(append(good[:len(good):len(good)], tail...)) {
			got = append(got, kind)
		}
		if len(got) != 1 || got[0] != 1 {
			t.Errorf("%s: attributes %v, want 1", name, got)
		}
	}
	if Uint32([]byte{1, 2}) != 0 || CString([]byte("ab")) != "ab" || CString(nil) != "" {
		t.Error("a short number is not 0, or a text without its end is lost")
	}
}

// The kernel answers a request before it returns, in its own words.
func TestSocket(t *testing.T) {
	s, err := Dial()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	// There is no message of this kind, whatever the rights of the process.
	err = s.Dump(unix.NFNL_SUBSYS_NFTABLES, 0xff, unix.NFPROTO_INET, nil,
		func([]byte) { t.Error("an answer to a message of no kind") })
	if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EPERM) {
		t.Errorf("error %v, want EINVAL or EPERM", err)
	}
	for range s.Replies(false) {
		t.Error("an answer remains")
	}
	if s.Port == 0 || s.FD() <= 0 {
		t.Errorf("port %d, descriptor %d", s.Port, s.FD())
	}
}

// An error has the kernel's text where it sent one.
func TestReplyErrno(t *testing.T) {
	ack := func(errno int32, text string) Reply {
		b := binary.NativeEndian.AppendUint32(nil, uint32(errno))
		var e Encoder
		if text != "" {
			e.Text(unix.NLMSGERR_ATTR_MSG, text)
		}
		return Reply{
			Kind: unix.NLMSG_ERROR, Flags: unix.NLM_F_ACK_TLVS,
			Data: append(append(b, make([]byte, unix.SizeofNlMsghdr)...), e.B...),
		}
	}
	if err := ack(0, "").Errno(); err != nil {
		t.Error(err)
	}
	if err := ack(-int32(unix.ENOENT), "").Errno(); err != unix.ENOENT {
		t.Errorf("error %v, want ENOENT alone", err)
	}
	err := ack(-int32(unix.EBUSY), "set is in use").Errno()
	if !errors.Is(err, unix.EBUSY) || !strings.HasPrefix(err.Error(), "set is in use: ") {
		t.Errorf("error %q, want the kernel's text and EBUSY", err)
	}
}
