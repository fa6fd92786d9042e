package main

import (
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"unicode/utf8"
)

// columns is the length to which lines count: a longer one counts as the lines that it would be broken into, so
// that no product becomes smaller by longer lines.
const columns = 120

// linesAt counts the lines of a text that is broken at columns. A tab counts as four.
func linesAt(text string, columns int) (n int) {
	for line := range strings.Lines(text) {
		width := utf8.RuneCountInString(strings.TrimRight(line, "\n")) + 3*strings.Count(line, "\t")
		n += max(1, (width+columns-1)/columns)
	}
	return n
}

// linked returns the directories, below root, of the packages of this module that a command links.
func linked(root, command string) ([]string, error) {
	const own = "{{with .Module}}{{if .Main}}{{$.Dir}}{{end}}{{end}}"
	list := exec.Command("go", "list", "-deps", "-f", own, command)
	list.Dir = root
	out, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("go list %s: %w", command, err)
	}
	root, err = filepath.Abs(root)
	if err != nil {
		return nil, err
	}
	var dirs []string
	for _, dir := range strings.Fields(string(out)) {
		below, err := filepath.Rel(root, dir)
		if err != nil {
			return nil, err
		}
		dirs = append(dirs, below)
	}
	return dirs, nil
}

// printProduct prints how many lines the product has: what the command links, without tests and generated files.
func printProduct(w io.Writer, packages map[string]*proportions, command string) error {
	dirs, err := linked(".", command)
	if err != nil {
		return err
	}
	n := 0
	for _, dir := range dirs {
		if p := packages[dir]; p != nil {
			n += p.broken
		}
	}
	_, err = fmt.Fprintf(w, "%s links %d lines of this module at %d columns, without tests and generated files\n",
		command, n, columns)
	return err
}
