package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/fanfare-lb/fanfare/speaker"
)

func routesCommand() *cobra.Command {
	var (
		runDir string
		asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "routes [ROUTER...]",
		Short: "Say which routes, with which attributes, the speaker of this node tells each router",
		Long: `Say which routes, with which attributes, the speaker of this node tells each
router, or the named ones: what should stand in the router's table as
received from this node.`,
		RunE: func(cmd *cobra.Command, names []string) error {
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			defer cancel()
			all, err := speaker.FetchRoutes(ctx, runDir)
			if err != nil {
				return err
			}
			if all, err = named(all, names); err != nil {
				return err
			}
			if asJSON {
				enc := json.NewEncoder(cmd.OutOrStdout())
				enc.SetIndent("", "  ")
				return enc.Encode(all)
			}
			return printRoutes(cmd.OutOrStdout(), all)
		},
	}
	cmd.Flags().StringVar(&runDir, "run-dir", defaultRunDir, "the speaker's run directory")
	cmd.Flags().BoolVar(&asJSON, "json", false, "everything, for programs")
	return cmd
}

// named are the sessions of all that names ask for; all, if there are none.
func named(all []speaker.SessionRoutes, names []string) (asked []speaker.SessionRoutes, err error) {
	if len(names) == 0 {
		return all, nil
	}
	var have []string
	for _, s := range all {
		have = append(have, s.Session)
		if slices.Contains(names, s.Session) {
			asked = append(asked, s)
		}
	}
	for _, n := range names {
		if !slices.Contains(have, n) {
			return nil, fmt.Errorf("router %q: this node has no session of that name, but %q", n, have)
		}
	}
	return asked, nil
}

func printRoutes(w io.Writer, all []speaker.SessionRoutes) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(t, "ROUTER\tPREFIX\tNEXT HOP\tAS PATH\tLOCAL PREF\tMED\tCOMMUNITIES\n")
	for _, s := range all {
		if len(s.Routes) == 0 {
			fmt.Fprintf(t, "%s\tnone: %s\n", s.Session, noRoutes(s))
		}
		for _, r := range s.Routes {
			path, communities := r.ASPath, r.AllCommunities()
			if path == "" {
				path = "-"
			}
			if communities == "" {
				communities = "-"
			}
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", s.Session, r.Prefix, r.NextHop, path, number(r.LocalPref), number(r.MED), communities)
		}
	}
	return t.Flush()
}

func noRoutes(s speaker.SessionRoutes) string {
	if s.Error != "" {
		return s.Error
	}
	return "the session is " + string(s.State)
}

func number(n *uint32) string {
	if n == nil {
		return "-"
	}
	return strconv.FormatUint(uint64(*n), 10)
}
