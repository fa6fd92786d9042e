package state

import "fmt"

// A Mode is the kernel interface that the rules are written to.
type Mode string

const (
	// ModeAuto chooses nftables if it works, and otherwise iptables.
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
