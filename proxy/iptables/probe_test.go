package iptables

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/internal/testing/proxytest"
)

// A kernel that lacks something is asked rule by rule, and the answer has the names
// by which it can be had.
func TestModeSaysWhatIsMissing(t *testing.T) {
	proxytest.InNamespace(t, func(t *testing.T) {
		i := Program{Name: "iptables-nft"}
		if err := i.lacks(t.Context(), 0); err == nil || !strings.Contains(err.Error(), "CONFIG_NETFILTER_XT_SET") ||
			strings.Contains(err.Error(), "CONFIG_NETFILTER_XT_NAT") {
			// The rules about a set need the set, which is not made here.
			t.Errorf("%v; want it to name the match set alone", err)
		}
		if save, err := i.saveAll(t.Context()); err != nil || strings.Contains(save, probeChain) {
			t.Errorf("a trace of the search: %v\n%s", err, save)
		}
	})
}

// A program that hangs does not keep the search from ending when the speaker stops.
func TestLacksEndsWithContext(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"iptables-hung", "iptables-hung-restore"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\nexec sleep 60\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := (Program{Name: "iptables-hung"}).lacks(ctx, 0); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v: want the end of the context", err)
	}
}

func TestRuleWords(t *testing.T) {
	for rule, want := range map[string][]string{
		"":                              nil,
		"-A  FORWARD -j DROP ":          {"-A", "FORWARD", "-j", "DROP"},
		`--comment "two words" -j DROP`: {"--comment", "two words", "-j", "DROP"},
		`--comment "" -j DROP`:          {"--comment", "", "-j", "DROP"},
		`--comment "say \"no\"\\" -j X`: {"--comment", `say "no"\`, "-j", "X"},
		`-m bpf --bytecode "2,6 0 0 0"`: {"-m", "bpf", "--bytecode", "2,6 0 0 0"},
	} {
		if got := RuleWords(rule); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", rule, got, want)
		}
	}
}
