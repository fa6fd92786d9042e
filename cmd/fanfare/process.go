package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// setGCPercent makes the garbage collector run when the heap has grown by half, not when it
// has doubled: every node pays for a speaker's memory all the time, and for its CPU time
// only while Services change. GOGC in the environment takes precedence.
func setGCPercent() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(50)
	}
}

// logger returns a logger that writes key=value lines to standard error, where container runtimes
// and systemd collect them. Standard output is for the results of commands.
func logger(level string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("--log-level %q: want debug, info, warn or error", level)
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: l})), nil
}

// registry returns a registry with the metrics of the process and of the Go runtime. It is not
// Prometheus' default one: libraries would add metrics there that no page documents.
func registry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// signals returns a context that ends with the first SIGTERM or SIGINT, and one that ends
// with the second, for users who cannot wait. stop ends both, and restores the default handling:
// another signal then kills the process. A nil parent is context.Background().
func signals(parent context.Context) (first, second context.Context, stop func()) {
	if parent == nil {
		parent = context.Background()
	}
	second, kill := context.WithCancel(parent)
	first, begin := context.WithCancel(second)
	// Both signals may arrive before the goroutine runs: signal.Notify drops what finds no room.
	c := make(chan os.Signal, 2)
	signal.Notify(c, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		for _, end := range []func(){begin, kill} {
			select {
			case <-c:
				end()
			case <-second.Done():
				return
			}
		}
	}()
	return first, second, func() { signal.Stop(c); kill() }
}
