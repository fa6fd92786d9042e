package main

import (
	"fmt"
	"strings"

	"github.com/fanfare-lb/fanfare/internal/metallb/counterparts"
)

// metallbFields returns a table for each kind of MetalLB's objects.
func metallbFields() string {
	var b strings.Builder
	for all := counterparts.Fields; len(all) > 0; {
		rows := [][]string{{"field", "in Fanfare", "how"}}
		kind, version := all[0].Kind, all[0].Version
		for len(all) > 0 && all[0].Kind == kind && all[0].Version == version {
			rows = append(rows, []string{"`" + all[0].Path + "`", counterpart(all[0].Counterpart), all[0].How})
			all = all[1:]
		}
		fmt.Fprintf(&b, "### %s %s\n\n%s\n", kind, version, table(rows...))
	}
	return b.String()
}

// counterpart sets the field in code, and leaves the kind before it as text.
func counterpart(text string) string {
	kind, field, ok := strings.Cut(text, " ")
	if !ok {
		return "none"
	}
	return kind + " `" + field + "`"
}
