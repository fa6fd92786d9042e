package main

import (
	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"

	"github.com/fanfare-lb/fanfare/internal/monitoring"
)

// A monitoringFlags value holds the flags of metrics and health, the same for the speaker and
// the controller.
type monitoringFlags struct{ metrics, health string }

// add defines the flags. port is an example.
func (f *monitoringFlags) add(set *pflag.FlagSet, port string) {
	set.StringVar(&f.metrics, "metrics-address", "",
		"TCP address for /metrics, such as :"+port+
			"; at any but a loopback address it is HTTPS, and clients need a token that the API server accepts and "+
			"the right to get the path; empty: none")
	set.StringVar(&f.health, "health-address", "",
		"TCP address for /healthz and /readyz, such as 127.0.0.1:7474; empty: none")
}

// options checks the flags. api is nil without an API server: no token can be checked then, so that
// only a loopback address is accepted for metrics.
func (f *monitoringFlags) options(api *rest.Config) (monitoring.Options, error) {
	o := monitoring.Options{MetricsAddress: f.metrics, HealthAddress: f.health, API: api}
	return o, o.Check()
}
