package main

import (
	"context"
	"errors"

	"github.com/fanfare-lb/fanfare/e2e/kube/measure"
)

// A machine is what the numbers depend on besides the programs measured, and the
// versions of those.
type machine struct {
	measure.Machine
	Fanfare, Kubernetes, NFT, IPTables string
}

func describe(ctx context.Context, b *bench) (m machine, err error) {
	m.Machine, err = measure.ThisMachine()
	return m, errors.Join(err, measure.Versions(ctx,
		measure.Version{To: &m.Fanfare, Cut: "fanfare version ", Command: []string{b.binary, "--version"}},
		measure.Version{To: &m.Kubernetes, Cut: "Kubernetes ", Command: []string{b.tools, "kube-proxy", "--version"}},
		measure.Version{To: &m.NFT, Command: []string{"nft", "--version"}},
		measure.Version{To: &m.IPTables, Command: []string{legacy["iptables"], "--version"}},
	))
}
