package watch

import (
	"cmp"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/fanfare-lb/fanfare/internal/cluster"
)

var update = flag.Bool("update", false, "write the golden files again")

// snapshotFile is the file of a golden archive that holds the result. All other
// files of the archive are the folder that is read.
const snapshotFile = "snapshot.txt"

func TestGolden(t *testing.T) {
	paths, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no golden files: %v", err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			a, err := txtar.ParseFile(path)
			if err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			want := extract(t, a, dir)
			f, err := OpenFiles(t.Context(), dir, nil, quiet)
			if err != nil {
				t.Fatal(err)
			}
			got := render(f.Snapshot())
			if *update {
				setFile(a, snapshotFile, got)
				if err := os.WriteFile(path, txtar.Format(a), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if d := gocmp.Diff(want, got); d != "" {
				t.Errorf("snapshot differs (-want +got; -update writes it again):\n%s", d)
			}
		})
	}
}

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// extract writes the folder of a into dir and returns the result that it wants.
func extract(t *testing.T, a *txtar.Archive, dir string) (want string) {
	t.Helper()
	for _, f := range a.Files {
		if f.Name == snapshotFile {
			want = string(f.Data)
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, f.Name), f.Data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return want
}

func setFile(a *txtar.Archive, name, data string) {
	i := slices.IndexFunc(a.Files, func(f txtar.File) bool { return f.Name == name })
	if i < 0 {
		a.Files = append(a.Files, txtar.File{Name: name})
		i = len(a.Files) - 1
	}
	a.Files[i].Data = []byte(data)
}

// render writes a snapshot as text: what is at its default is left out.
func render(s *cluster.Snapshot) string {
	var b strings.Builder
	for svc := range s.Services.All() {
		renderService(&b, svc)
	}
	for _, n := range s.Nodes {
		fmt.Fprintf(&b, "node %s%s%s%s%s\n", n.Name, list(" ip ", n.InternalIPs), list(" pods ", n.PodCIDRs),
			when(n.Excluded, " excluded"), when(n.Leaving != "", " leaving: "+n.Leaving)+
				when(n.NetworkUnavailable, " network unavailable")+when(n.NotReady, " not ready")+
				when(n.ReadyUnknown, " silent"))
	}
	for _, n := range s.Namespaces {
		fmt.Fprintf(&b, "namespace %s %s\n", n.Name, n.Labels)
	}
	for _, c := range s.ServiceCIDRs {
		fmt.Fprintf(&b, "serviceCIDR %s%s\n", c.Name, list(" ", c.CIDRs))
	}
	for _, p := range s.Pools {
		renderPool(&b, p)
	}
	for _, p := range s.Peers {
		renderPeer(&b, p)
	}
	for _, a := range s.Advertisements {
		renderAdvertisement(&b, a)
	}
	for _, a := range s.L2Advertisements {
		renderL2Advertisement(&b, a)
	}
	for _, sp := range s.Speakers {
		fmt.Fprintf(&b, "speaker %s%s\n", sp.Node, list(" ", sp.Interfaces))
	}
	for c := range s.Claims.All() {
		fmt.Fprintf(&b, "claim %s pool %s%s%s%s\n", c.Addr, cmp.Or(c.Pool, "-"), list(" holders ", c.Holders),
			when(c.Node != "", " at "+c.Node), when(c.Reserved, " reserved")+list(" kept for ", c.ReservedFor))
	}
	for a := range s.Assignments.All() {
		fmt.Fprintf(&b, "assigned %s %s pool %s\n", a.Addr, a.Service, cmp.Or(a.Pool, "-"))
	}
	for _, p := range s.Problems {
		fmt.Fprintf(&b, "%s%s %s\n", when(p.Warning, "warning"), when(!p.Warning, "problem"), p)
	}
	return b.String()
}

func renderPool(b *strings.Builder, p *cluster.Pool) {
	fmt.Fprintf(b, "pool %s %s%s%s", p.Name, p.Allocation, list(" ", p.Ranges),
		when(p.AvoidBuggyIPs, " avoids buggy IPs"))
	b.WriteString(when(p.Priority != 0, fmt.Sprint(" priority ", p.Priority)) +
		when(p.Quota != 0, fmt.Sprint(" quota ", p.Quota)) +
		when(p.Namespaces != nil, " for namespaces "+strings.Join(p.Namespaces, ", ")))
	b.WriteString(gateText(" for namespaces ", p.NamespaceSelector) + gateText(" for services ", p.ServiceSelector))
	for _, o := range p.Occupied {
		fmt.Fprintf(b, " but %s", o.Text())
	}
	b.WriteString(when(p.ReservedQuota != cluster.DefaultReservedQuota, fmt.Sprint(" reserves ", p.ReservedQuota)) +
		when(p.ServiceCommunities != nil, " allows"+communitiesText(p.ServiceCommunities)) +
		when(p.AllowL2Node, " allows nodes"))
	b.WriteString("\n")
}

func gateText(prefix string, s cluster.Selector) string {
	switch s.String() {
	case "":
		return ""
	case cluster.Nothing().String():
		return prefix + "never"
	}
	return prefix + strconv.Quote(s.String())
}

func sharingText(s *cluster.Sharing) string {
	if s == nil {
		return ""
	}
	return " shares by " + s.Key + list(" with ", s.Namespaces)
}

func renderService(b *strings.Builder, s cluster.Service) {
	fmt.Fprintf(b, "service %s %s external %s internal %s", s.Name, s.IPFamilyPolicy, s.ExternalTrafficPolicy,
		s.InternalTrafficPolicy)
	b.WriteString(list(" ", s.IPFamilies) + when(s.Class != "", " class "+s.Class) +
		when(!s.Created.IsZero(), " created "+s.Created.Format("2006-01-02")))
	b.WriteString(when(s.PublishNotReady, " publishes not ready") + list(" wants ", s.Requested) +
		list(" wants pool ", s.RequestedPools) + sharingText(s.Sharing) + when(s.Reserve, " keeps its addresses"))
	b.WriteString(when(len(s.Labels) > 0, " labels "+s.Labels.String()))
	b.WriteString(when(s.Restricted, " only for"+cmp.Or(list(" ", s.Sources), " no client")) +
		when(s.Affinity != 0, " affinity "+s.Affinity.String()))
	b.WriteString(when(s.HealthCheckPort != 0, fmt.Sprintf(" health at %d", s.HealthCheckPort)) +
		when(s.ServiceProxy != "", " proxied by "+s.ServiceProxy))
	b.WriteString(when(s.Scheduler != cluster.SchedulerRandom, " scheduler "+s.Scheduler) +
		communitiesText(s.Communities) + when(s.L2Node != "", " at "+s.L2Node))
	for _, p := range s.Problems {
		b.WriteString(" " + string(p.Code))
	}
	b.WriteString(list(" status ", s.Status) + when(s.StatusProxied, " proxied") + "\n")
	for _, p := range s.Ports {
		fmt.Fprintf(b, "  port %s %d/%s\n", cmp.Or(p.Name, `""`), p.Port, p.Protocol)
	}
	if s.Endpoints == nil {
		b.WriteString("  no slices\n")
		return
	}
	for _, subset := range s.Endpoints.Subsets {
		for _, p := range subset.Ports {
			fmt.Fprintf(b, "  endpoints of %s have %d/%s\n", cmp.Or(p.Name, `""`), p.Port, p.Protocol)
		}
		for _, e := range subset.List {
			fmt.Fprintf(b, "    %s on %s%s%s%s\n", e.Addr, cmp.Or(e.Node, "-"),
				when(!e.Ready, " not ready"), when(!e.Serving, " not serving"), when(e.Terminating, " terminating")+
					when(e.ForZones != "", " for zones "+string(e.ForZones))+
					when(e.ForNodes != "", " for nodes "+string(e.ForNodes)))
		}
	}
}

func renderAdvertisement(b *strings.Builder, a *cluster.Advertisement) {
	fmt.Fprintf(b, "advertisement %s /%d /%d%s%s%s%s", a.Name, a.Length4, a.Length6, list(" pools ", a.Pools),
		list(" peers ", a.Peers), when(!a.ServiceSelector.Empty(), " services "+a.ServiceSelector.String()),
		when(!a.NodeSelector.Empty(), " nodes "+a.NodeSelector.String()))
	b.WriteString(communitiesText(a.Communities) + optional(" local preference ", a.LocalPref) +
		optional(" med ", a.MED) + optional(" prepend ", a.Prepend) + "\n")
}

func renderL2Advertisement(b *strings.Builder, a *cluster.L2Advertisement) {
	fmt.Fprintf(b, "l2 advertisement %s%s%s%s%s", a.Name, list(" pools ", a.Pools), list(" on ", a.Interfaces),
		when(!a.ServiceSelector.Empty(), " services "+a.ServiceSelector.String()),
		when(!a.NodeSelector.Empty(), " nodes "+a.NodeSelector.String()))
	for _, p := range a.Preferred {
		fmt.Fprintf(b, " prefers %s by %d", cmp.Or(p.Selector.String(), "all"), p.Weight)
	}
	b.WriteString("\n")
}

func optional[T any](prefix string, n *T) string {
	if n == nil {
		return ""
	}
	return prefix + fmt.Sprint(*n)
}

func communitiesText(c *cluster.Communities) string {
	if c == nil {
		return ""
	}
	return fmt.Sprintf(" communities %s %s", c.Standard, c.Large)
}

func renderPeer(b *strings.Builder, p *cluster.Peer) {
	fmt.Fprintf(b, "peer %s AS%d at %s port %d, we are AS%d", p.Name, p.PeerASN,
		when(p.PeerAddress.IsValid(), p.PeerAddress.String())+p.Interface, p.PeerPort, p.MyASN)
	b.WriteString(when(p.Secret != "", " secret "+p.Secret+" of "+strconv.Itoa(len(p.Password))+" bytes"))
	if p.BFD.Multiplier != 0 {
		fmt.Fprintf(b, " bfd %s/%s x%d%s", p.BFD.Transmit, p.BFD.Receive, p.BFD.Multiplier,
			when(p.BFD.Passive, " passive"))
	}
	b.WriteString(when(p.External, " external") + when(p.LocalASN != p.MyASN, fmt.Sprintf(" as AS%d", p.LocalASN)))
	b.WriteString(when(p.DefaultGateway != "", " gateway "+string(p.DefaultGateway)) +
		when(p.Device != "", " by "+p.Device) + when(p.Passive, " passive") + when(p.Weights, " weights"))
	b.WriteString(when(p.SourceInterface != "", " from "+p.SourceInterface) +
		when(p.TTLSecurityHops != 0, fmt.Sprintf(" within %d hops", p.TTLSecurityHops)))
	b.WriteString(when(p.SourceAddress.IsValid(), " from "+p.SourceAddress.String()) +
		when(p.RouterID.IsValid(), " id "+p.RouterID.String()))
	b.WriteString(when(!p.NodeSelector.Empty(), " nodes "+p.NodeSelector.String()))
	b.WriteString(when(p.HoldTime != 0, " hold "+p.HoldTime.String()) +
		when(p.KeepaliveTime != 0, " keepalive "+p.KeepaliveTime.String()))
	b.WriteString(when(p.ConnectTime != 0, " connect "+p.ConnectTime.String()) +
		when(p.EBGPMultihopTTL != 0, fmt.Sprintf(" ttl %d", p.EBGPMultihopTTL)))
	b.WriteString(when(p.GracefulRestart, " restart "+p.RestartTime.String()) + "\n")
}

func when(cond bool, s string) string {
	if cond {
		return s
	}
	return ""
}

func list[T any](prefix string, l []T) string {
	if len(l) == 0 {
		return ""
	}
	s := make([]string, len(l))
	for i, v := range l {
		s[i] = fmt.Sprint(v)
	}
	return prefix + strings.Join(s, ",")
}

// The samples are what a newcomer begins with: they must parse without a Problem.
func TestSamples(t *testing.T) {
	f, err := OpenFiles(t.Context(), "../../manifests/samples", nil, quiet)
	if err != nil {
		t.Fatal(err)
	}
	s := f.Snapshot()
	if len(s.Problems) != 0 {
		t.Errorf("problems: %v", s.Problems)
	}
	if s.Services.Len() != 1 || s.Services.At(0).Endpoints == nil || len(s.Pools) != 3 || len(s.Peers) != 2 ||
		len(s.Advertisements) != 1 || len(s.L2Advertisements) != 1 {
		t.Errorf("the samples do not make a whole:\n%s", render(s))
	}
}

var yamlBlock = regexp.MustCompile("(?ms)^```yaml\n(.*?)^```")

// So must the objects in the documents, each as it stands.
func TestDocumentedObjects(t *testing.T) {
	files, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	objects := 0
	for _, name := range append(files, "../../README.md") {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range yamlBlock.FindAllStringSubmatch(string(text), -1) {
			if !strings.Contains(m[1], "apiVersion: fanfare.io/") {
				continue
			}
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, "objects.yaml"), []byte(m[1]), 0o644); err != nil {
				t.Fatal(err)
			}
			f, err := OpenFiles(t.Context(), dir, nil, quiet)
			if err != nil {
				t.Fatal(err)
			}
			// A sample may be about objects that another one shows, and the text may show
			// the problem itself, in the words about the objects.
			bad := slices.DeleteFunc(slices.Clone(f.Snapshot().Problems), func(p cluster.Problem) bool {
				p.File = ""
				return strings.HasSuffix(p.Message, " of this name") ||
					strings.Contains(string(text), "\n"+p.String()+"\n")
			})
			if len(bad) != 0 {
				t.Errorf("%s: problems %v of\n%s", name, bad, m[1])
			}
			objects += strings.Count(m[1], "apiVersion: fanfare.io/")
		}
	}
	if objects < 10 {
		t.Errorf("%d objects were found", objects)
	}
}
