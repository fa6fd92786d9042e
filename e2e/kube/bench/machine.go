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
	Fanfare, Kubernetes, FRR, BIRD, NFT string
}

func describe(ctx context.Context, b *bench) (m machine, err error) {
	m.Machine, err = measure.ThisMachine()
	return m, errors.Join(err, measure.Versions(ctx,
		measure.Version{To: &m.Fanfare, Cut: "fanfare version ", Command: []string{b.Binary, "--version"}},
		measure.Version{To: &m.Kubernetes, Cut: "Kubernetes ", Command: []string{b.tools, "kube-apiserver", "--version"}},
		measure.Version{To: &m.FRR, Cut: "bgpd version ", Command: []string{"/usr/lib/frr/bgpd", "--version"}},
		measure.Version{To: &m.BIRD, Cut: "BIRD version ", Command: []string{"/usr/sbin/bird", "--version"}},
		measure.Version{To: &m.NFT, Command: []string{"nft", "--version"}},
	))
}
