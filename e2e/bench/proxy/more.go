package proxy

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/fanfare-lb/fanfare/e2e/kube"
)

// moreEndpoints is how many endpoints each of more Services has. kube-proxy's time grows with them.
const moreEndpoints = 1

// nftablesPrograms returns the programs that load more Services.
func nftablesPrograms() []*program {
	return []*program{fanfare(rulesName, "--proxy-mode", "nftables"), kubeProxy(kube.NFTables)}
}

// A loadOfMore is what both programs take with more Services, without traffic.
type loadOfMore struct {
	Services int
	Trials   []trial
}

// loadMore lets the programs load more Services by nftables. It has a control plane of its own, so that the Services
// that other nodes forward stay as they are.
func (b *bench) loadMore(ctx context.Context) (l loadOfMore, err error) {
	m := &bench{world: b.world, options: b.options, tools: b.tools, log: b.log}
	m.services, m.endpoints = b.more, moreEndpoints
	l.Services = m.services
	b.log.Info("control plane", "services", m.services)
	if err := m.startControl(ctx, filepath.Join(b.dir, "more")); err != nil {
		return l, err
	}
	defer func() { err = errors.Join(err, m.control.Stop()) }()
	if err := m.api.fill(ctx, 0, m.services, m.endpoints); err != nil {
		return l, fmt.Errorf("fill: %w", err)
	}
	for _, p := range nftablesPrograms() {
		n, err := m.node(ctx, fmt.Sprint("node", len(m.nodes)+1))
		if err != nil {
			return l, err
		}
		t, err := m.runTrial(ctx, p, n)
		if err != nil {
			return l, fmt.Errorf("%s: %w", p.name, err)
		}
		l.Trials = append(l.Trials, t)
	}
	return l, nil
}
