// Command prose looks for words that plain technical English does without, in Go's
// comments and strings, in documents, in comments of scripts, YAML, C, nft and routers, and in
// the descriptions of test cases (txtar).
//
//	go run ./hack/prose DIR...
//
// It prints file:line: what was found, and what to write instead, and exits with 1
// if it found any. words.txt lists the words.
package main

import (
	_ "embed"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

//go:embed words.txt
var words string

func main() {
	found, err := run(os.Stdout, words, os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "prose:", err)
	}
	if err != nil || found > 0 {
		os.Exit(1)
	}
}

// run checks every file below dirs and counts what it prints.
func run(w io.Writer, list string, dirs []string) (found int, err error) {
	rules, err := parseRules(list)
	if err != nil {
		return 0, err
	}
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case d.IsDir() && name != dir && (d.Name() == "bin" || d.Name()[0] == '.'):
				return fs.SkipDir
			case d.IsDir() || inTestdata(dir, name) && filepath.Ext(name) != ".txtar":
				return nil
			}
			text, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			passages, err := extract(name, text)
			if err != nil {
				return err
			}
			for _, f := range check(rules, passages) {
				fmt.Fprintf(w, "%s:%d: %s: instead write %s\n", name, f.line, f.text, f.instead)
				found++
			}
			return nil
		})
		if err != nil {
			return found, err
		}
	}
	return found, nil
}

// inTestdata reports whether a file is in a directory testdata below dir. What tests read may be anything, but
// people read their cases.
func inTestdata(dir, name string) bool {
	below, err := filepath.Rel(dir, name)
	return err == nil && slices.Contains(strings.Split(filepath.ToSlash(below), "/"), "testdata")
}
