package state

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"golang.org/x/sys/unix"
)

// NFFamily returns the kernel's number for a family: 0 is IPv4 and 1 IPv6, as in [Family].
func NFFamily(f SetID) uint8 { return [2]uint8{unix.NFPROTO_IPV4, unix.NFPROTO_IPV6}[f] }

// ShortHash returns a short name for a long one, or for several.
func ShortHash(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		fmt.Fprintf(h, "%d:%s", len(p), p)
	}
	return hex.EncodeToString(h.Sum(nil)[:6])
}
