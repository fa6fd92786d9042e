package iptables

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/fanfare-lb/fanfare/proxy/renderer"
)

// A Program is one of the four that a kernel can have rules of: two families,
// and for each of them two places, which know nothing of one another. A packet
// must pass both.
type Program struct {
	Name string // of the program; -save and -restore are added
	ipv6 bool
	// Tables is a file that lists the tables there are, if to ask for one by the
	// program would make it. Only the old interface has that.
	Tables string
}

var Programs = []Program{
	{Name: "iptables-nft"},
	{Name: "iptables-legacy", Tables: "/proc/thread-self/net/ip_tables_names"},
	{Name: "ip6tables-nft", ipv6: true},
	{Name: "ip6tables-legacy", ipv6: true, Tables: "/proc/thread-self/net/ip6_tables_names"},
}

// Has says whether there can be rules for FORWARD, and a program to see them by.
func (i Program) Has() (bool, error) {
	if _, err := exec.LookPath(i.Name + "-save"); err != nil {
		return false, nil
	}
	if i.Tables == "" {
		return true, nil
	}
	tables, err := os.ReadFile(i.Tables)
	// A kernel without the old interface; or a user namespace that is as old as its
	// network, in which the file has no owner, and iptables-legacy-save fails too.
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return false, nil
	}
	return slices.Contains(strings.Fields(string(tables)), "filter"), err
}

// Save is the table filter as text.
func (i Program) Save(ctx context.Context) (string, error) {
	return i.Run(ctx, "", "-save", "-t", "filter")
}

// restore changes what script names and nothing else, in one transaction. It
// waits a second at most for others that change the old tables: meanwhile no
// endpoint changes, and it will be tried again.
func (i Program) restore(ctx context.Context, script string) error {
	_, err := i.Run(ctx, script, "-restore", "--noflush", "-w", "1")
	return err
}

// iptablesPatience bounds what a program of iptables may take.
const iptablesPatience = 5 * time.Second

func (i Program) Run(ctx context.Context, input, suffix string, args ...string) (string, error) {
	return i.runFor(ctx, iptablesPatience, input, suffix, args...)
}

func (i Program) runFor(ctx context.Context, patience time.Duration, input, suffix string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var out, complaint strings.Builder
	cmd := exec.CommandContext(ctx, i.Name+suffix, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &out, &complaint
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s%s: %w: %s", i.Name, suffix, err, renderer.FirstLines(complaint.String(), 3))
	}
	return out.String(), nil
}
