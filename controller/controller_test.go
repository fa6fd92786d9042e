package controller

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

// options are those of a controller whose passes write everything, however slow the machine is.
func options(s *store) Options {
	return Options{
		Config: s.config(nil), Instance: "test", Log: slog.New(slog.DiscardHandler), Registry: prometheus.NewRegistry(),
		passTime: 24 * time.Hour,
	}
}

// populate fills the store with a pool of three addresses and five Services.
func (s *store) populate(t *testing.T) {
	w := &world{store: s}
	w.setPool("lan", 3)
	for i := range 5 {
		name := fmt.Sprint("s", i)
		s.put(servicesPath+name, nil, from(t, w.service(name)))
	}
}

// A still source does not change.
type still struct{ snap *cluster.Snapshot }

func (s still) Snapshot() *cluster.Snapshot { return s.snap }
func (s still) Changed() <-chan struct{}    { return nil }

// source is what a controller would read now.
func (s *store) source() cluster.Source { return still{(&world{store: s}).truth()} }

// noRegistry registers nothing.
type noRegistry struct{}

func (noRegistry) Register(prometheus.Collector) error  { return nil }
func (noRegistry) MustRegister(...prometheus.Collector) {}
func (noRegistry) Unregister(prometheus.Collector) bool { return true }
