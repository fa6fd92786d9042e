package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// The lines of cobra's help. The two columns of a list are separated by two spaces at least, which no
// usage text has in it.
var (
	command = regexp.MustCompile(`(?m)^  ([a-z]+) +(.*)$`)
	flag    = regexp.MustCompile(`(?m)^ +(?:-\w, |    )--([\w-]+)(?: (\w+))? {2,}(.*?)(?: \(default (.*)\))?$`)
)

// addCommands adds the flags of each command, as the program itself lists them. It runs the program
// and does not import it: package main cannot be imported, and the help is what users read.
func addCommands(parts map[string]string, root string) error {
	dir, err := os.MkdirTemp("", "reference")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	program := filepath.Join(dir, "fanfare")
	// As `make build` does, whose results are in the cache.
	build := exec.Command("go", "build", "-trimpath", "-tags=grpcnotrace", "-o", program, "./cmd/fanfare")
	build.Dir, build.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("go build ./cmd/fanfare: %w: %s", err, out)
	}
	var b strings.Builder
	if err := describeCommands(&b, program); err != nil {
		return err
	}
	parts["commands"] = b.String()
	return nil
}

// describeCommands writes a section for each command below path, and for the commands of one that has any.
func describeCommands(b *strings.Builder, program string, path ...string) error {
	help, err := helpOf(program, path...)
	if err != nil {
		return err
	}
	// The list ends at the first empty line: flags of the command itself follow.
	_, list, group := strings.Cut(help, "Available Commands:\n")
	list, _, _ = strings.Cut(list, "\n\n")
	if !group {
		fmt.Fprintf(b, "\n## fanfare %s\n\n%s", strings.Join(path, " "), describe(help))
		return nil
	}
	for _, m := range command.FindAllStringSubmatch(list, -1) {
		if m[1] == "help" || m[1] == "completion" { // cobra's own
			continue
		}
		if err := describeCommands(b, program, append(slices.Clone(path), m[1])...); err != nil {
			return err
		}
	}
	return nil
}

// helpOf is what the program prints, whatever node this runs on: without an environment, so that no
// $NODE_NAME becomes a default in the docs.
func helpOf(program string, args ...string) (string, error) {
	cmd := exec.Command(program, append(args, "--help")...)
	cmd.Env = []string{}
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("fanfare %v --help: %w: %s", args, err, out)
	}
	return string(out), nil
}

// describe makes Markdown of a command's help.
func describe(help string) string {
	about, rest, _ := strings.Cut(help, "\nUsage:\n")
	usage, flags, _ := strings.Cut(rest, "\nFlags:\n")
	rows := [][]string{{"flag", "type", "default", "meaning"}}
	for _, m := range flag.FindAllStringSubmatch(flags, -1) {
		if m[1] == "help" {
			continue
		}
		value := m[4]
		if value != "" {
			value = "`" + strings.Trim(value, `"`) + "`"
		}
		if m[2] == "" { // cobra leaves the type of a switch out
			m[2] = "bool"
		}
		rows = append(rows, []string{"`--" + m[1] + "`", m[2], value, m[3]})
	}
	return strings.TrimSpace(about) + "\n\n```\n" + strings.TrimSpace(usage) + "\n```\n\n" + table(rows...)
}
