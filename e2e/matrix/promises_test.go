package matrix

import (
	"cmp"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// A row of the table of promises is for the cells whose feature matches one of the patterns.
// The first row of a disturbance that matches a feature applies.
type row struct {
	features []string // patterns as of path.Match
	promise
	// reason says why these cells do not exist; then there is no promise.
	reason string
}

// Pages that several promises refer to.
const (
	whatHappens = "concepts/failures.md"
	limits      = "limits.md#connections"
	failover    = "concepts/layer2.md#failover"
	crashed     = "concepts/layer2.md#when-only-the-speaker-fails"
)

var (
	everything = []string{"*"}
	layer2     = []string{"l2-*"}
	// With the policy Local, no reply of a pod is addressed to a node.
	notMasqueraded = []string{"local", "weights", "bfd", "no-graceful-restart", "unnumbered", "udp"}
	noRouter       = row{features: layer2, reason: "Layer 2 has no BGP router"}
)

// seconds is short for the table.
func seconds(n int) time.Duration { return time.Duration(n) * time.Second }

// promises is the table: what the documentation promises for each cell.
var promises = map[string][]row{
	"speaker-killed": {
		{features: layer2, promise: promise{flaps: 2, back: seconds(10), page: crashed}},
		{features: []string{"no-graceful-restart"},
			promise: promise{requests: moved, connections: moved, flaps: 4, back: seconds(10), page: limits}},
		{features: everything, promise: promise{flaps: 0, back: seconds(10), page: whatHappens + "#a-speaker-stops"}},
	},
	"speaker-frozen": {
		{features: layer2, promise: promise{flaps: 2, back: seconds(10), page: crashed}},
		{features: everything, promise: promise{
			requests: moved, connections: moved, flaps: 4, back: seconds(15), page: limits,
		}},
	},
	"speaker-upgraded": {
		{features: layer2, promise: promise{flaps: 4, back: seconds(10), page: "concepts/layer2.md#planned-moves"}},
		{features: []string{"no-graceful-restart"},
			promise: promise{
				requests: moved, connections: moved, flaps: 8, back: seconds(10),
				page: "concepts/graceful-restart.md#the-idea",
			}},
		{features: everything, promise: promise{
			flaps: 0, back: seconds(10), page: "concepts/graceful-restart.md#the-sequence",
		}},
	},
	"router-restarted": {
		noRouter,
		{features: everything, promise: promise{
			requests: moved | away, connections: moved | away, flaps: anyNumber, back: seconds(15), page: limits,
		}},
	},
	"session-cleared": {
		noRouter,
		{features: everything, promise: promise{
			requests: moved, connections: moved, flaps: 4, back: seconds(15), page: limits,
		}},
	},
	"link-flap": {
		{features: layer2, promise: promise{
			requests: moved | away, connections: moved, flaps: 2, back: seconds(15), page: failover,
		}},
		{features: everything, promise: promise{
			requests: moved | away, connections: moved, flaps: 4, back: seconds(15), page: limits,
		}},
	},
	"table-flushed": {
		{features: notMasqueraded, promise: promise{
			requests: away, flaps: 0, away: 100 * time.Millisecond, back: seconds(5),
			page: whatHappens + "#the-kernels-table",
		}},
		{features: everything, promise: promise{
			requests: away, connections: away, flaps: 0, away: 100 * time.Millisecond, back: seconds(5),
			page: whatHappens + "#the-kernels-table",
		}},
	},
	"conntrack-full": {
		{features: []string{"fast-path"}, promise: promise{back: seconds(5), page: "fast-path.md#what-it-goes-past"}},
		{features: everything, promise: promise{
			requests: away, flaps: 0, back: seconds(5), page: "reference/obstacles.md#conntrackfull",
		}},
	},
	apiServerAway: {
		{features: layer2, promise: promise{back: seconds(5), page: failover}},
		{features: everything, promise: promise{back: seconds(5), page: whatHappens + "#the-api-server-is-away"}},
	},
	"gossip-away": {
		{features: layer2, promise: promise{
			flaps: anyNumber, back: seconds(10), page: "concepts/liveness.md#how-long-two-nodes-claim-one-address",
		}},
		{features: everything, promise: promise{back: seconds(5), page: "concepts/liveness.md#members"}},
	},
	"bad-object": {{features: everything, promise: promise{back: seconds(5), page: "files.md#changing-a-file"}}},
	"hostile-tenant": {
		{features: everything, promise: promise{
			back: seconds(5), page: "concepts/security.md#what-users-of-a-namespace-can-write",
		}},
	},
	"object-deleted": {{features: everything,
		promise: promise{back: seconds(5), page: "tasks/replace-a-pool.md#if-the-pool-is-deleted-too-early"}}},
	"node-added": {
		{features: layer2, promise: promise{
			flaps: 1, back: seconds(10), page: "concepts/layer2.md#when-a-node-comes-back",
		}},
		{features: everything, promise: promise{
			requests: moved, connections: moved, flaps: 2, back: seconds(10), page: limits,
		}},
	},
	"node-drained": {
		{features: layer2, promise: promise{flaps: 2, back: seconds(10), page: "tasks/drain-a-node.md#what-happens"}},
		{features: everything, promise: promise{
			requests: moved, connections: moved, flaps: 4, back: seconds(10),
			page: "tasks/drain-a-node.md#what-happens",
		}},
	},
}

// find returns the row of a cell.
func find(f feature, d disturbance) row {
	for _, r := range promises[d.name] {
		for _, pattern := range r.features {
			if ok, _ := path.Match(pattern, f.name); ok { // TestPromisesAreComplete has checked the patterns
				return r
			}
		}
	}
	return row{}
}

// Every cell has a promise, or a reason why it does not exist. Every row is some cell's, and
// every promise is in the documentation.
func TestPromisesAreComplete(t *testing.T) {
	used := map[string]bool{}
	for _, f := range features {
		for _, d := range disturbances {
			r := find(f, d)
			if (r.page == "") == (r.reason == "") {
				t.Errorf("%s/%s: want a promise with its page, or a reason: %+v", f.name, d.name, r)
			}
			used[d.name+strings.Join(r.features, "|")] = true
		}
	}
	for name, rows := range promises {
		if !slices.ContainsFunc(disturbances, func(d disturbance) bool { return d.name == name }) {
			t.Errorf("there is no disturbance %s", name)
		}
		for _, r := range rows {
			for _, pattern := range r.features {
				if _, err := path.Match(pattern, ""); err != nil {
					t.Errorf("%s: %q: %v", name, pattern, err)
				}
			}
			if !used[name+strings.Join(r.features, "|")] {
				t.Errorf("%s: no cell uses the row for %v", name, r.features)
			}
			if r.page != "" && !documented(t, r.page) {
				t.Errorf("%s: docs/%s does not exist", name, r.page)
			}
		}
	}
}

var heading = regexp.MustCompile(`(?m)^#+ (.*)$`)

// documented reports whether a page has a heading.
func documented(t *testing.T, page string) bool {
	t.Helper()
	name, anchor, _ := strings.Cut(page, "#")
	text, err := os.ReadFile(filepath.Join("../../docs", name))
	must(t, err)
	for _, m := range heading.FindAllStringSubmatch(string(text), -1) {
		slug := regexp.MustCompile(`[^a-z0-9 -]`).ReplaceAllString(strings.ToLower(m[1]), "")
		if strings.ReplaceAll(slug, " ", "-") == cmp.Or(anchor, strings.ReplaceAll(slug, " ", "-")) {
			return true
		}
	}
	return false
}
