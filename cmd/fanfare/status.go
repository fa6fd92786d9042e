package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/fanfare-lb/fanfare/bgp"
	"github.com/fanfare-lb/fanfare/internal/membership"
	"github.com/fanfare-lb/fanfare/l2"
	"github.com/fanfare-lb/fanfare/proxy"
	"github.com/fanfare-lb/fanfare/speaker"
)

// statusCommand asks the speaker over the socket in its run directory. Only root may open it,
// because the status has the names of all Services.
func statusCommand() *cobra.Command {
	cmd := askCommand(5*time.Second, func(ctx context.Context, runDir string, _ []string) (*speaker.Status, error) {
		return speaker.FetchStatus(ctx, runDir)
	}, func(w io.Writer, st *speaker.Status) error { return printStatus(w, st, time.Now()) })
	cmd.Use, cmd.Args = "status", cobra.NoArgs
	cmd.Short = "Show what the speaker of this node announces and forwards, and why not"
	return cmd
}

// askCommand asks the speaker of this node, and prints the answer. The speaker answers from memory, also while a pass
// hangs. Silence means that the process itself is stuck, and the user should know soon.
func askCommand[T any](
	timeout time.Duration, fetch func(ctx context.Context, runDir string, args []string) (T, error),
	show func(io.Writer, T) error,
) *cobra.Command {
	var (
		runDir string
		asJSON bool
	)
	cmd := &cobra.Command{RunE: func(cmd *cobra.Command, args []string) error {
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		defer cancel()
		answer, err := fetch(ctx, runDir, args)
		if err != nil {
			return err
		}
		// JSON has all values. The tables are for people only, and may change.
		if asJSON {
			enc := json.NewEncoder(cmd.OutOrStdout())
			enc.SetIndent("", "  ")
			return enc.Encode(answer)
		}
		return show(cmd.OutOrStdout(), answer)
	}}
	cmd.Flags().StringVar(&runDir, "run-dir", defaultRunDir, "the speaker's run directory")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON with all values")
	return cmd
}

// printStatus prints tables for people. It omits what is normal: a column or section appears
// only if it has content. What needs attention comes last, next to the prompt.
func printStatus(w io.Writer, st *speaker.Status, now time.Time) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "node %s, fanfare %s, up %s\n", st.Node, st.Version, duration.HumanDuration(now.Sub(st.Started)))
	printMembers(t, st.Members, now)
	printSessions(t, st.BGP, now)
	printInterfaces(t, st)
	printAddresses(t, st.Addresses)
	if err := t.Flush(); err != nil {
		return err
	}
	if x := st.Proxy; x.Mode == proxy.ModeIPTables {
		fmt.Fprintf(w, "\nForwarding by %s", strings.Join(x.Programs, " and "))
		if x.ModeReason != "" { // empty if the user has chosen iptables
			fmt.Fprintf(w, ", as nftables does not work here: %s", x.ModeReason)
		}
		fmt.Fprintln(w)
	}
	printFastPath(w, st.Proxy.FastPath)
	if lines := st.Attention(now); len(lines) > 0 {
		fmt.Fprintf(w, "\nNeeds attention:\n  %s\n", strings.Join(lines, "\n  "))
	}
	return nil
}

// printFastPath counts the frontends on the fast path. For each reason why others are not,
// it names the first one. Without a fast path it prints nothing.
func printFastPath(w io.Writer, f *proxy.FastPathStatus) {
	if f == nil {
		return
	}
	fmt.Fprintf(w, "\nFast path on %s, bypassing netfilter: %d of %d frontends, %d of at most %d flows\n",
		abbreviated(f.Interfaces), f.Frontends, f.Frontends+len(f.NotOffloaded), f.Flows, f.Capacity)
	if f.Full > 0 {
		fmt.Fprintf(w, "  %d flows found no room and use the rules\n", f.Full)
	}
	for _, l := range f.Limited {
		fmt.Fprintf(w, "  %s has %d flows, as many as there is room for others; %d more used the rules\n", l.Addr,
			l.Flows, l.Rejected)
	}
	// One reason, such as a missing interface, mostly applies to many frontends.
	var reasons []string
	first, count := map[string]string{}, map[string]int{}
	for _, l := range f.NotOffloaded {
		if count[l.Why]++; count[l.Why] == 1 {
			reasons, first[l.Why] = append(reasons, l.Why), l.Frontend
		}
	}
	// Reasons stay in the order of their first frontends, so that the output is stable.
	for _, why := range reasons {
		fmt.Fprintf(w, "  left to the rules: %s", first[why])
		if more := count[why] - 1; more > 0 {
			fmt.Fprintf(w, " and %d more", more)
		}
		fmt.Fprintf(w, ": %s\n", why)
	}
}

// printMembers counts the speakers that are alive, and lists the others. It prints nothing if
// speakers do not communicate.
func printMembers(w io.Writer, m *membership.Status, now time.Time) {
	if m.Summary() == "" {
		return
	}
	fmt.Fprintf(w, "speakers alive: %s\n", m.Summary())
	if !slices.ContainsFunc(m.Nodes, func(n membership.MemberStatus) bool { return n.State != "alive" }) {
		return
	}
	fmt.Fprint(w, "\nNODE\tSTATE\tSINCE\tENDPOINTS\n")
	for _, n := range m.Nodes {
		if n.State == "alive" {
			continue // counted in the summary
		}
		endpoints := "used"
		if slices.Contains(m.LeftOut, n.Node) {
			endpoints = "left out"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", n.Node, n.State, duration.HumanDuration(now.Sub(n.Since)), endpoints)
	}
}

// printSessions lists the BGP sessions, and the BFD sessions if there are any. SINCE is the time
// since the session entered its state; ROUTES counts advertised ones.
func printSessions(w io.Writer, b bgp.Status, now time.Time) {
	if len(b.Sessions) == 0 {
		return
	}
	// Omit the column if no session has BFD.
	bfd := slices.ContainsFunc(b.Sessions, func(s bgp.SessionStatus) bool { return s.BFD != nil })
	header := "\nROUTER\tADDRESS\tAS\tSESSION\tSINCE\tROUTES"
	if bfd {
		header += "\tBFD"
	}
	fmt.Fprintln(w, header)
	for _, s := range b.Sessions {
		fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\t%d", s.Name, s.Router(), s.PeerASN, s.State,
			duration.HumanDuration(now.Sub(s.Since)), s.Advertised)
		switch {
		case s.BFD != nil:
			fmt.Fprintf(w, "\t%s", s.BFD.State)
		case bfd:
			fmt.Fprint(w, "\t-")
		}
		fmt.Fprintln(w)
	}
}

// printInterfaces lists the interfaces that can answer for addresses by ARP and NDP, and counts
// the addresses that each answers for now.
func printInterfaces(w io.Writer, st *speaker.Status) {
	if len(st.L2.Interfaces) == 0 {
		return
	}
	answers := map[string]int{}
	for _, a := range st.Addresses {
		if a.Answered() {
			for _, name := range a.L2.Interfaces {
				answers[name]++
			}
		}
	}
	header := "\nINTERFACE\tMAC\tSUBNETS\tANSWERS FOR"
	if len(st.L2.AsymmetricPaths) > 0 {
		header += "\tREPLIES LEAVE BY"
	}
	fmt.Fprintln(w, header)
	for _, i := range st.L2.Interfaces {
		var subnets []string
		for _, p := range i.Prefixes {
			subnets = append(subnets, p.String())
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%d", i.Name, i.MAC, abbreviated(subnets), answers[i.Name])
		if len(st.L2.AsymmetricPaths) > 0 {
			fmt.Fprintf(w, "\t%s", abbreviated(replyInterfaces(i.Name, st.L2.AsymmetricPaths)))
		}
		fmt.Fprintln(w)
	}
}

// replyInterfaces returns the interfaces by which replies to clients behind a router leave,
// if the clients arrive by another one. A stateful firewall that sees one direction only drops
// such connections.
func replyInterfaces(iface string, paths []l2.AsymmetricPath) (by []string) {
	for _, p := range paths {
		switch {
		case p.Interface != iface:
		case p.IPv6:
			by = append(by, p.By+" (IPv6)")
		default:
			by = append(by, p.By)
		}
	}
	return by
}

// printAddresses lists all addresses of this node, also lingering ones: they are withdrawn, and
// the node forwards them for the linger time.
func printAddresses(w io.Writer, list []speaker.AddressStatus) {
	if len(list) == 0 {
		return
	}
	fmt.Fprint(w, "\nADDRESS\tSERVICE\tPORTS\tFORWARDED\tANNOUNCED\n")
	for _, a := range list {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", a.Address, abbreviated(a.Services), abbreviated(a.Ports),
			yesNo(a.Programmed), announced(a))
	}
}

// announced returns "yes", or "no" with the reason. If both protocols have an opinion on the
// address, it returns both, since one may announce it and the other not.
func announced(a speaker.AddressStatus) string {
	about := func(protocol string) bool {
		return slices.ContainsFunc(a.Reasons, func(r speaker.ReasonStatus) bool { return r.Protocol == protocol })
	}
	switch bgp, l2 := about("bgp"), about("l2"); {
	case bgp && l2:
		return "BGP: " + routed(a) + "; L2: " + answered(a)
	case l2:
		return answered(a)
	default:
		return routed(a)
	}
}

// notAnnounced returns why a protocol does not announce an address, empty if it does. The
// cell says "no" already, so the message loses its prefix.
func notAnnounced(a speaker.AddressStatus, protocol string) string {
	var why []string
	for _, r := range a.Reasons {
		message := strings.TrimPrefix(strings.TrimPrefix(r.Message, "not announced: "), "not announced yet: ")
		if r.Protocol == protocol && !r.Code.Announces() && !slices.Contains(why, message) {
			why = append(why, message)
		}
	}
	return strings.Join(why, "; ")
}

// answered returns "yes" with the interfaces if this node answers for an address over L2, else
// "no" with the reason.
func answered(a speaker.AddressStatus) string {
	if !a.Answered() {
		return "no: " + notAnnounced(a, "l2")
	}
	text := "yes, on " + strings.Join(a.L2.Interfaces, ", ")
	if a.OwnerBy != "" {
		text += " (" + a.OwnerBy + ")"
	}
	if a.RedirectsTo != "" {
		text += ", and redirects earlier connections to " + a.RedirectsTo
	}
	return text
}

// routed returns "yes" with the route's attributes if an address is announced to routers, else
// "no" with the reason. A route that no router receives is not announced.
func routed(a speaker.AddressStatus) string {
	if why := notAnnounced(a, "bgp"); why != "" {
		return "no: " + why
	}
	text := yesNo(a.Announced)
	if !a.Announced {
		return text
	}
	// An address in an aggregate has no route of its own, which surprises without a hint.
	if aggregates := slices.DeleteFunc(slices.Clone(a.Prefixes), netip.Prefix.IsSingleIP); len(aggregates) > 0 {
		text += ", in " + strings.Trim(fmt.Sprint(aggregates), "[]")
	}
	if a.Weight != 0 {
		text += fmt.Sprintf(", weight %d", a.Weight)
	}
	for _, with := range a.Attributes {
		text += ", " + with
	}
	return text
}

// yesNo formats a boolean for a table's cell, where true and false read badly.
func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// abbreviated joins words, and abbreviates more than three, so that a row fits a terminal. It
// returns a dash for none.
func abbreviated(words []string) string {
	switch len(words) {
	case 0:
		return "-"
	case 1, 2, 3:
		return strings.Join(words, ",")
	default:
		return strings.Join(words[:2], ",") + ",+" + strconv.Itoa(len(words)-2)
	}
}
