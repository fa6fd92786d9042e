// Command form checks the form of Go that gofmt leaves open: a line has at most 120 columns, of which a tab counts as
// four, as on GitHub; imports are in three groups, of the standard library, others and this module.
//
//	go run ./hack/form [-fix] DIR...
//
// It prints file:line and what is there, and exits with 1 if there is any. With -fix it first wraps comments (see
// wrap), puts those after code above it, breaks code (see cut) and groups imports. Lines that have to be long are left
// out: directives and markers, raw strings, code and tables in comments, and a URL or another word that is longer
// alone. So is generated code.
package main

import (
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

func main() {
	fix := flag.Bool("fix", false, "change what can be")
	flag.Parse()
	found, err := run(os.Stdout, *fix, flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, "form:", err)
	}
	if err != nil || found > 0 {
		os.Exit(1)
	}
}

// run checks every Go file below dirs and counts what it prints.
func run(w io.Writer, fix bool, dirs []string) (found int, err error) {
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case d.IsDir() && name != dir && (d.Name() == "testdata" || d.Name() == "bin" || d.Name()[0] == '.'):
				return fs.SkipDir
			case d.IsDir() || filepath.Ext(name) != ".go":
				return nil
			}
			list, err := checkFile(name, fix)
			for _, f := range list {
				fmt.Fprintf(w, "%s:%d: %s\n", name, f.line, f.what)
			}
			found += len(list)
			return err
		})
		if err != nil {
			return 0, err
		}
	}
	return found, nil
}

// checkFile returns what a file has, and changes what can be before.
func checkFile(name string, fix bool) ([]finding, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	if fix {
		wrapped, err := fixed(name, text)
		if err != nil {
			return nil, err
		}
		if string(wrapped) != string(text) {
			if err := os.WriteFile(name, wrapped, 0o644); err != nil {
				return nil, err
			}
		}
		text = wrapped
	}
	return check(name, text)
}
