// Command columns checks that no line of Go is longer than 120 columns. A tab counts as four, as in golines and on
// GitHub.
//
//	go run ./hack/columns [-fix] DIR...
//
// It prints file:line, the length, and whether it is of code, of a comment after code or of a comment with lines of
// its own, and exits with 1 if there is any. With -fix it first wraps the latter (see wrap); the others are for golines
// and for hands. Lines that have to be long are left out: directives and markers, the text of raw strings over several
// lines, code and tables in comments, and a URL or another word that is longer alone. So is generated code.
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
	fix := flag.Bool("fix", false, "wrap comments")
	flag.Parse()
	found, err := run(os.Stdout, *fix, flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, "columns:", err)
	}
	if err != nil || found > 0 {
		os.Exit(1)
	}
}

// run checks every Go file below dirs and counts what it prints.
func run(w io.Writer, fix bool, dirs []string) (found int, err error) {
	kinds := map[string]int{}
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
			lines, err := checkFile(name, fix)
			for _, l := range lines {
				fmt.Fprintf(w, "%s:%d: %d columns of %s\n", name, l.number, l.columns, l.kind)
				kinds[l.kind]++
			}
			return err
		})
		if err != nil {
			return 0, err
		}
	}
	for _, kind := range []string{code, trailing, comment} {
		found += kinds[kind]
	}
	if found > 0 {
		fmt.Fprintf(w, "%d lines of %s, %d of %s, %d of %s are longer than %d columns\n",
			kinds[code], code, kinds[trailing], trailing, kinds[comment], comment, limit)
	}
	return found, nil
}

// checkFile returns the long lines of a file, and wraps its comments before.
func checkFile(name string, fix bool) ([]long, error) {
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
