// Command proportions prints, for the code of each package without tests and generated
// files, the share of comment lines and the lengths of functions, or only how many lines the product has.
//
//	go run ./hack/proportions
//	go run ./hack/proportions -product ./cmd/fanfare
//
// The aim is 15 to 20 % comment, a median of 10 to 15 lines, and 95 % below 60. It reports
// and enforces nothing: a table or a long switch may be longer and clearer.
package main

import (
	"flag"
	"fmt"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
)

func main() {
	product := flag.String("product", "", "a command: count the lines that it links")
	flag.Parse()
	if err := run(*product); err != nil {
		fmt.Fprintln(os.Stderr, "proportions:", err)
		os.Exit(1)
	}
}

func run(product string) error {
	packages, err := measure(".")
	if err != nil {
		return err
	}
	if product != "" {
		return printProduct(os.Stdout, packages, product)
	}
	return printAll(os.Stdout, packages)
}

// measure measures every package below root.
func measure(root string) (map[string]*proportions, error) {
	packages := map[string]*proportions{}
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != root && (d.Name() == "testdata" || d.Name()[0] == '.'):
			return fs.SkipDir
		case d.IsDir() || filepath.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, name, text, parser.ParseComments)
		if err != nil {
			return err
		}
		dir := filepath.Dir(name)
		if packages[dir] == nil {
			packages[dir] = &proportions{}
		}
		packages[dir].add(fset, f, string(text))
		return nil
	})
	return packages, err
}

func printAll(w io.Writer, packages map[string]*proportions) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "lines\tcomment\tfunctions\tmedian\t95 %\tlongest\t")
	all := &proportions{}
	for _, dir := range slices.Sorted(maps.Keys(packages)) {
		fmt.Fprintf(t, "%s  %s\n", packages[dir], dir)
		all.merge(packages[dir])
	}
	fmt.Fprintf(t, "%s  all\n", all)
	return t.Flush()
}
