package state

import "fmt"

// A Mode is the part of the kernel that rules are written in.
type Mode string

const (
	// ModeAuto is nftables where it works and iptables elsewhere.
	ModeAuto     Mode = "auto"
	ModeNFTables Mode = "nftables"
	ModeIPTables Mode = "iptables"
)

// ParseMode reads a Mode; empty is ModeAuto.
func ParseMode(s string) (Mode, error) {
	switch m := Mode(s); m {
	case "":
		return ModeAuto, nil
	case ModeAuto, ModeNFTables, ModeIPTables:
		return m, nil
	}
	return "", fmt.Errorf("proxy mode %q: want auto, nftables or iptables", s)
}
