// Command reference writes the parts of docs/reference that say what the code says: the
// fields of the objects, the flags, the metrics, the codes. Each part is between two comments of
// a page:
//
//	<!-- generated: NAME -->
//	<!-- end -->
//
// A part without a page is an error, and so is a page with an unknown part.
package main

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

//go:generate go run . ../..

func main() {
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "reference:", err)
		os.Exit(1)
	}
}

// run fills the pages in place. Nothing is written if a part cannot be generated: a page with old
// parts is better than one without.
func run(root string) error {
	parts, err := generate(root)
	if err != nil {
		return err
	}
	err = filepath.WalkDir(filepath.Join(root, "docs/reference"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		filled, err := fill(string(text), parts)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		return os.WriteFile(path, []byte(filled), 0o644)
	})
	// fill has removed what has a page. A new object or command must not go undocumented because
	// its page was forgotten.
	if err == nil && len(parts) != 0 {
		err = fmt.Errorf("no page has the parts %v; add the two comments where each belongs",
			slices.Sorted(maps.Keys(parts)))
	}
	return err
}

// generate returns the text of each part. Fields come from the CRDs and flags from the program's own
// help, since both are what users meet; the rest is read from the syntax, which needs no code of
// its own in the product.
func generate(root string) (map[string]string, error) {
	parts := map[string]string{}
	if err := addObjects(parts, filepath.Join(root, "manifests/crds")); err != nil {
		return nil, err
	}
	if err := addCommands(parts, root); err != nil {
		return nil, err
	}
	code, err := parse(root)
	if err != nil {
		return nil, err
	}
	// These types have no other purpose than to mark the constants that users can see.
	for name, c := range map[string]struct{ dir, kind string }{
		"reason codes":      {"internal/cluster", "Code"},
		"obstacles":         {"proxy/obstacle", "Code"},
		"events":            {"speaker", "eventReason"},
		"condition reasons": {"controller", "conditionReason"},
		"files":             {"speaker/rundir", "file"},
	} {
		if parts[name], err = code.constants(c.dir, c.kind); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	if parts["annotations"], err = code.annotations("internal"); err != nil {
		return nil, err
	}
	parts["metallb fields"] = metallbFields()
	parts["metrics"], err = code.metrics()
	return parts, err
}

// part has the old text in it, so that a second run replaces what the first one wrote.
var part = regexp.MustCompile(`(?s)<!-- generated: ([\w ]+) -->\n.*?<!-- end -->`)

// fill replaces the parts of a page, and removes them from parts: each has one page.
func fill(page string, parts map[string]string) (string, error) {
	var err error
	filled := part.ReplaceAllStringFunc(page, func(old string) string {
		name := part.FindStringSubmatch(old)[1]
		text, ok := parts[name]
		if !ok {
			err = fmt.Errorf("part %q is unknown, or on two pages", name)
			return old
		}
		delete(parts, name)
		return "<!-- generated: " + name + " -->\n\n" + strings.TrimSpace(text) + "\n\n<!-- end -->"
	})
	return filled, err
}

// table is one in Markdown, whose first row is the header. A pipe within a cell would end it.
func table(rows ...[]string) string {
	var b strings.Builder
	for i, row := range rows {
		for _, cell := range row {
			b.WriteString("| " + strings.ReplaceAll(cell, "|", "\\|") + " ")
		}
		b.WriteString("|\n")
		if i == 0 {
			b.WriteString(strings.Repeat("| --- ", len(row)) + "|\n")
		}
	}
	return b.String()
}
