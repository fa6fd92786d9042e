package measure

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"go/scanner"
	"go/token"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// measured has the folders, and files, of the code that each benchmark measures. Those below them count
// too.
//
// A page says whether this code has changed since the measurement, and a test compares the
// page with the code. The first change after a measurement therefore needs `make generate`,
// which marks the page as old; later changes need nothing, because an old page remains old
// until it is measured again. Git is not asked: a shallow clone does not have the commit.
// Comments, tests and versions of libraries do not count.
var measured = map[string][]string{
	"bgp": {"bgp", "cmd/fanfare/process.go", "internal/cluster", "internal/kernel/nfnl", "internal/plan",
		"internal/base/sortedset", "internal/watch", "proxy", "speaker"},
	"gossip": {"internal/membership/gossip"},
	"ipam": {"cmd/fanfare/process.go", "controller", "internal/cluster", "internal/ipam",
		"internal/base/sortedset", "internal/watch"},
	"kube": {"bgp", "cmd/fanfare/process.go", "controller", "internal/cluster", "internal/ipam",
		"internal/kernel/nfnl", "internal/plan", "internal/base/sortedset", "internal/watch", "proxy", "speaker"},
	"l2": {"cmd/fanfare/process.go", "internal/cluster", "internal/election", "internal/kernel/linkwatch",
		"internal/membership", "internal/kernel/neighbour", "internal/kernel/nfnl", "internal/plan",
		"internal/redirect", "internal/base/sortedset", "internal/kernel/suspend", "l2", "proxy", "speaker"},
	"load": {"bgp", "cmd/fanfare/process.go", "internal/cluster", "internal/kernel/nfnl", "internal/plan",
		"internal/base/sortedset", "internal/watch", "proxy", "speaker"},
	"matrix": {"bgp", "cmd/fanfare/process.go", "controller", "internal/cluster", "internal/election",
		"internal/ipam", "internal/kernel/linkwatch", "internal/membership", "internal/kernel/neighbour",
		"internal/kernel/nfnl", "internal/plan", "internal/redirect", "internal/base/sortedset",
		"internal/kernel/suspend", "internal/watch", "l2", "proxy", "speaker"},
	"conformance": {"bgp", "cmd/fanfare/process.go", "controller", "internal/cluster", "internal/election",
		"internal/ipam", "internal/kernel/linkwatch", "internal/membership", "internal/kernel/neighbour",
		"internal/kernel/nfnl", "internal/plan", "internal/redirect", "internal/base/sortedset",
		"internal/kernel/suspend", "internal/watch", "l2", "proxy", "speaker"},
	"proxy": {"cmd/fanfare/process.go", "internal/cluster", "internal/kernel/nfnl", "internal/plan",
		"internal/base/sortedset", "internal/watch", "proxy", "speaker"},
	"scale": {"cmd/fanfare/process.go", "controller", "internal/cluster", "internal/ipam", "internal/membership",
		"internal/plan", "internal/base/sortedset", "internal/watch", "speaker"},
}

// CodeOf returns a hash of the code that a benchmark measures, in the tree below source.
func CodeOf(name, source string) (string, error) {
	folders, ok := measured[name]
	if !ok {
		return "", fmt.Errorf("BUG: the code that benchmark %s measures is not listed", name)
	}
	h := sha256.New()
	for _, folder := range folders {
		err := filepath.WalkDir(filepath.Join(source, folder), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !isCode(path) {
				return err
			}
			return addFile(h, source, path)
		})
		if err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(h.Sum(nil)[:8]), nil
}

func isCode(path string) bool {
	return strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") || strings.HasSuffix(path, ".c")
}

// addFile adds the name of a file and its tokens: not its comments, nor its layout.
func addFile(h io.Writer, source, path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	name, err := filepath.Rel(source, path)
	if err != nil {
		return err
	}
	fmt.Fprintf(h, "%s\n", filepath.ToSlash(name))
	if !strings.HasSuffix(path, ".go") {
		_, err = h.Write(text)
		return err
	}
	var s scanner.Scanner
	s.Init(token.NewFileSet().AddFile("", -1, len(text)), text, nil, 0)
	for _, t, literal := s.Scan(); t != token.EOF; _, t, literal = s.Scan() {
		fmt.Fprintf(h, "%s %q\n", t, literal)
	}
	return nil
}
