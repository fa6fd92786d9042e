package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/fanfare-lb/fanfare/speaker"
)

// routesCommand shows routes as the speaker sends them, after each router's policy. A user
// compares them with the routes that the router has received.
func routesCommand() *cobra.Command {
	// Longer than for the status: the speaker reads the whole table of each router.
	cmd := askCommand(30*time.Second, fetchRoutes, printRoutes)
	cmd.Use, cmd.Short = "routes [ROUTER...]", "Show the routes that the speaker of this node advertises to each router"
	cmd.Long = `Show the routes, with their attributes, that the speaker of this node advertises
to each router, or to the named ones. The router's table of routes received from
this node should have the same.`
	return cmd
}

func fetchRoutes(ctx context.Context, runDir string, names []string) ([]speaker.SessionRoutes, error) {
	all, err := speaker.FetchRoutes(ctx, runDir)
	if err != nil {
		return nil, err
	}
	return selectSessions(all, names)
}

// selectSessions returns the sessions with the given names; all of them without names. An unknown
// name is an error that lists the known ones: an empty result would look like a router without
// routes.
func selectSessions(all []speaker.SessionRoutes, names []string) (selected []speaker.SessionRoutes, err error) {
	if len(names) == 0 {
		return all, nil
	}
	var have []string
	for _, s := range all {
		have = append(have, s.Session)
		if slices.Contains(names, s.Session) {
			selected = append(selected, s)
		}
	}
	for _, n := range names {
		if !slices.Contains(have, n) {
			return nil, fmt.Errorf("router %q: this node has no such session; it has %q", n, have)
		}
	}
	return selected, nil
}

// printRoutes prints one line for each route. A router without routes has a line with the
// reason, so that every session appears.
func printRoutes(w io.Writer, all []speaker.SessionRoutes) error {
	// One line for each prefix with its attributes, as in FRR's "show bgp", so that both
	// tables compare line by line.
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(t, "ROUTER\tPREFIX\tNEXT HOP\tAS PATH\tLOCAL PREF\tMED\tCOMMUNITIES\n")
	for _, s := range all {
		if len(s.Routes) == 0 {
			fmt.Fprintf(t, "%s\tnone: %s\n", s.Session, cmp.Or(s.Error, "the session is "+string(s.State)))
		}
		for _, r := range s.Routes {
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", s.Session, r.Prefix, r.NextHop,
				cmp.Or(r.ASPath, "-"), formatOptional(r.LocalPref), formatOptional(r.MED),
				cmp.Or(r.AllCommunities(), "-"))
		}
	}
	return t.Flush()
}

// formatOptional formats an optional attribute of a route: LOCAL_PREF is sent to internal peers
// only (RFC 4271 section 5.1.5), and MED only if it is configured. 0 is a valid value of both.
func formatOptional(n *uint32) string {
	if n == nil {
		return "-"
	}
	return strconv.FormatUint(uint64(*n), 10)
}
