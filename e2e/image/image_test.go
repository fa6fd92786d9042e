package image

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/json"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
	"github.com/fanfare-lb/fanfare/proxy/nftables"
)

const version = "v0.0.0-test"

// The image that `make image` writes works: its programs run with the privileges of the
// speaker's manifest, and the speaker programs its table.
func TestImageRunsWithLeastRights(t *testing.T) {
	if testing.Short() {
		t.Skip("builds an image")
	}
	if os.Geteuid() != 0 {
		nstest.Missing(t, "needs root, for a root directory of its own")
	}
	dir := t.TempDir()
	made := filepath.Join(dir, "image.tar")
	makeImage(t, made)
	a, err := readArchive(made)
	if err != nil {
		t.Fatal(err)
	}
	root := filepath.Join(dir, "root")
	if err := os.Mkdir(root, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := a.unpack(root); err != nil {
		t.Fatal(err)
	}
	t.Run("Reproducible", func(t *testing.T) { checkReproducible(t, made, root, a) })
	t.Run("Config", func(t *testing.T) { checkConfig(t, a) })
	t.Run("Lean", func(t *testing.T) { checkUnusedFunctionsDropped(t, filepath.Join(root, "usr/bin/fanfare")) })
	t.Run("Complete", func(t *testing.T) { checkLibraries(t, root) })
	t.Run("Licenses", func(t *testing.T) { checkLicenses(t, root) })
	t.Run("Tools", func(t *testing.T) { checkTools(t, root, a.Config.Config.Env) })
	t.Run("Speaker", func(t *testing.T) { checkSpeaker(t, root, a.Config.Config.Env) })
}

func makeImage(t *testing.T, output string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "make", "-C", "../..", "image", "IMAGE="+output, "VERSION="+version)
	// Not the flags of a make that runs this test.
	cmd.Env = append(os.Environ(), "MAKEFLAGS=", "MAKELEVEL=")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("make image: %v\n%s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		if strings.HasPrefix(line, output+": ") {
			t.Log(strings.TrimSpace(line)) // its size and digest
		}
	}
}

// checkReproducible checks that the same input gives the same image bit by bit. The input
// is that of the first image, because the source tree may change meanwhile.
func checkReproducible(t *testing.T, made, root string, a *archive) {
	again := filepath.Join(t.TempDir(), "again.tar")
	cmd := exec.CommandContext(t.Context(), "go", "-C", "../../hack/image", "run", ".",
		"-binary", filepath.Join(root, "usr/bin/fanfare"), "-license",
		filepath.Join(root, "usr/share/doc/fanfare/copyright"), "-newer", newerDebian(t), "-version", version,
		"-revision", a.Config.Config.Labels["org.opencontainers.image.revision"], "-o", again)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	first, err := os.ReadFile(made)
	if err != nil {
		t.Fatal(err)
	}
	second, err := os.ReadFile(again)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(first, second) {
		t.Error("two images from the same input differ")
	}
	if limit := 30_000_000; len(first) > limit {
		t.Errorf("%d bytes: want at most %d", len(first), limit)
	}
}

// newerDebian is where make image keeps the packages of the newer nft.
func newerDebian(t *testing.T) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(cache, "fanfare/debian/trixie-"+runtime.GOARCH)
}

// checkUnusedFunctionsDropped checks that the linker has dropped unused functions, because
// the whole program is resident on every node. The linker keeps all exported methods if
// templates may call any by name.
func checkUnusedFunctionsDropped(t *testing.T, program string) {
	text, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	linked := func(f string) bool { return bytes.Contains(text, []byte(f)) }
	if f := "text/template.(*state).evalField"; linked(f) || !linked("main.main") {
		t.Errorf("the binary contains %s, or no function names", f)
	}
}

// checkConfig checks that manifests find the image as `fanfare`, and that it runs without
// privileges.
func checkConfig(t *testing.T, a *archive) {
	if want := []string{"fanfare:latest", "fanfare:" + version}; !slices.Equal(a.Tags, want) {
		t.Errorf("tags %q, want %q", a.Tags, want)
	}
	c := a.Config
	if c.OS != "linux" || c.Architecture != runtime.GOARCH {
		t.Errorf("for %s/%s", c.OS, c.Architecture)
	}
	if want := []string{"/usr/bin/fanfare"}; !slices.Equal(c.Config.Entrypoint, want) ||
		c.Config.User != "65532:65532" {
		t.Errorf("runs %q as %q", c.Config.Entrypoint, c.Config.User)
	}
	if got := c.Config.Labels["org.opencontainers.image.version"]; got != version {
		t.Errorf("labelled %q", got)
	}
}

// checkLibraries checks that the image has the libraries and the loader of every program
// and plug-in, and no program that runs commands for an attacker.
func checkLibraries(t *testing.T, root string) {
	needed, there := map[string]string{}, map[string]bool{}
	walk(t, root, func(name string) {
		there[filepath.Base(name)] = true
		f, err := elf.Open(filepath.Join(root, name))
		if err != nil {
			return // not a program
		}
		defer f.Close()
		libraries, err := f.ImportedLibraries()
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for _, l := range libraries {
			needed[l] = name
		}
	})
	for library, by := range needed {
		if !there[library] {
			t.Errorf("%s: %s is missing", by, library)
		}
	}
	if len(needed) < 10 {
		t.Errorf("only %d libraries needed", len(needed))
	}
	for _, shell := range []string{"sh", "bash", "dash", "busybox", "perl"} {
		if there[shell] {
			t.Errorf("%s is in the image", shell)
		}
	}
}

func walk(t *testing.T, root string, f func(name string)) {
	t.Helper()
	err := fs.WalkDir(os.DirFS(root), ".", func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			f(name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// checkLicenses checks that the licences of all included software are in the image.
func checkLicenses(t *testing.T, root string) {
	packages, err := os.ReadDir(filepath.Join(root, "var/lib/dpkg/status.d"))
	if err != nil {
		t.Fatal(err)
	}
	if len(packages) < 10 {
		t.Errorf("only %d packages on record", len(packages))
	}
	var places []string
	for _, p := range packages {
		places = append(places, p.Name()+"/copyright")
	}
	places = append(places, "fanfare/copyright", "fanfare/go/std/LICENSE",
		"fanfare/go/github.com/osrg/gobgp/v4/LICENSE")
	for _, p := range places {
		if b, err := os.ReadFile(filepath.Join(root, "usr/share/doc", p)); err != nil || len(b) < 200 {
			t.Errorf("%s: %d bytes, %v", p, len(b), err)
		}
	}
}

// checkTools checks that the image's tools work as the machine's do in the same namespace.
func checkTools(t *testing.T, root string, env []string) {
	c := newContainer(t, root, env, map[string]string{"/run/xtables.lock": lock(t)})
	if got := c.output(t, "/usr/bin/fanfare", "--version"); got != "fanfare version "+version+"\n" {
		t.Errorf("fanfare --version: %q", got)
	}
	// The rule needs a plug-in, and a protocol that only /etc/protocols defines.
	rule := []string{"-A", "FORWARD", "-p", "ospf", "-m", "conntrack", "--ctstate", "DNAT", "-j", "ACCEPT"}
	for _, family := range []string{"iptables", "ip6tables"} {
		for _, backend := range []string{"nft", "legacy"} {
			tool := "/usr/sbin/" + family + "-" + backend
			expectSameOutput(t, c, tool, rule...)
			expectSameOutput(t, c, tool, "-S")
			expectSameOutput(t, c, tool+"-save", "-t", "filter")
		}
	}
	expectSameOutput(t, c, "/usr/sbin/nft", "--version")
	expectSameOutput(t, c, "/usr/sbin/nft", "list", "ruleset")
	newer := append(slices.Clone(nftables.Installed()[1]), "--version")
	if got := c.output(t, newer[0], newer[1:]...); !strings.HasPrefix(got, "nftables v1.1.") {
		t.Errorf("%q: %q", newer, got)
	}
}

// lock returns the lock file that the manifest mounts for iptables-legacy. All programs on
// the node that change the legacy tables share it.
func lock(t *testing.T) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "xtables.lock")
	if err := os.WriteFile(name, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// expectSameOutput compares the machine's tool with the image's. If the kernel lacks the
// legacy tables, both fail.
func expectSameOutput(t *testing.T, c *container, tool string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), tool, args...)
	want := runIn(cmd, func() (err error) {
		c.node.Do(func() { err = cmd.Start() })
		return err
	})
	cmd = c.command(t.Context(), tool, args...)
	got := runIn(cmd, func() error { return c.start(cmd) })
	if got != want {
		t.Errorf("%s %s in the image:\n%s\non the machine:\n%s", tool, strings.Join(args, " "), got, want)
	}
	if !strings.Contains(tool, "-legacy") && !strings.HasSuffix(got, ended(nil)) {
		t.Errorf("%s %s:\n%s", tool, strings.Join(args, " "), got)
	}
}

// runIn returns a command's output and exit status, without comments, which contain the
// time.
func runIn(cmd *exec.Cmd, start func() error) string {
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := start()
	if err == nil {
		err = cmd.Wait()
	}
	var kept strings.Builder
	for line := range strings.Lines(out.String()) {
		if !strings.HasPrefix(line, "#") {
			kept.WriteString(line)
		}
	}
	return kept.String() + ended(err)
}

func ended(err error) string { return fmt.Sprintf("error: %v\n", err) }

func (c *container) output(t *testing.T, path string, args ...string) string {
	t.Helper()
	var out bytes.Buffer
	cmd := c.command(t.Context(), path, args...)
	cmd.Stdout, cmd.Stderr = &out, &out
	err := c.start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		t.Fatalf("%s: %v\n%s", path, err, &out)
	}
	return out.String()
}

// checkSpeaker checks that the speaker forwards with the privileges of its manifest, and
// reports it.
func checkSpeaker(t *testing.T, root string, env []string) {
	run, cluster := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(cluster, "passive.yaml"), []byte(passivePeer), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, from := range []string{"../containerlab/cluster", "../containerlab/examples"} {
		if err := os.CopyFS(cluster, os.DirFS(from)); err != nil {
			t.Fatal(err)
		}
	}
	c := newContainer(t, root, env, map[string]string{
		"/run/fanfare": run, "/cluster": cluster, "/run/xtables.lock": lock(t),
	})
	dropping := dropForward(t, c)
	var log syncBuffer
	cmd := c.command(t.Context(), "/usr/bin/fanfare", "speaker", "--files", "/cluster", "--node-name", "n1")
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := c.start(cmd); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the speaker's log:\n%s", &log)
		}
	})

	await(t, ended, func() error { return ready(t.Context(), filepath.Join(run, "speaker.sock")) })
	rights := fmt.Sprintf("/proc/%d/status", cmd.Process.Pid)
	if b, err := os.ReadFile(rights); err != nil || !bytes.Contains(b, []byte("CapPrm:\t0000000000003400\n")) {
		t.Errorf("%s, %v: want no capabilities but NET_ADMIN, NET_BIND_SERVICE and NET_RAW:\n%s", rights, err, b)
	}
	await(t, ended, func() error { return listens(cmd.Process.Pid, 179) })
	if got := c.output(t, "/usr/sbin/nft", "list", "set", "inet", "fanfare", "vips4"); !strings.Contains(got,
		"elements = { ") {
		t.Errorf("no VIP in the kernel:\n%s", got)
	}
	if got := c.output(t, "/usr/bin/fanfare", "status"); !strings.Contains(got, "shop/web") {
		t.Errorf("fanfare status:\n%s", got)
	}
	var status speakerStatus
	if err := json.Unmarshal([]byte(c.output(t, "/usr/bin/fanfare", "status", "--json")), &status); err != nil {
		t.Fatal(err)
	}
	if got := status.Proxy; !slices.Equal(got.ForwardOpened, dropping) || got.ForwardError != "" {
		t.Errorf("opened FORWARD of %q, %q; want %q", got.ForwardOpened, got.ForwardError, dropping)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("after SIGTERM: %v", err)
		}
	case <-time.After(time.Minute):
		t.Error("the speaker still runs a minute after SIGTERM")
	}
}

// passivePeer needs a port below 1024.
const passivePeer = `
apiVersion: fanfare.io/v1alpha1
kind: BGPPeer
metadata: {name: passive}
spec: {peerAddress: 192.0.2.250, peerASN: 65000, myASN: 65001, passive: true, ebgpMultihopTTL: 2}
`

// listens reports an error unless a socket in the network namespace of a process listens
// for IPv4 on a port.
func listens(pid int, port uint16) error {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/tcp", pid))
	if err == nil && !regexp.MustCompile(fmt.Sprintf(`(?m)^ *\d+: [0-9A-F]+:%04X \S+ 0A `, port)).Match(b) {
		err = fmt.Errorf("no socket listens on port %d:\n%s", port, b)
	}
	return err
}

// A speakerStatus is the tested part of `fanfare status --json`.
type speakerStatus struct {
	Proxy struct {
		ForwardOpened []string `json:"forwardOpened"`
		ForwardError  string   `json:"forwardError"`
	} `json:"proxy"`
}

// dropForward sets the policy of FORWARD to DROP in every iptables, as Docker does, with
// the machine's programs. It returns the names of the iptables that this kernel supports.
func dropForward(t *testing.T, c *container) []string {
	t.Helper()
	var dropping []string
	for _, name := range []string{"iptables-nft", "iptables-legacy", "ip6tables-nft", "ip6tables-legacy"} {
		cmd := exec.CommandContext(t.Context(), name, "-P", "FORWARD", "DROP")
		out := runIn(cmd, func() (err error) {
			c.node.Do(func() { err = cmd.Start() })
			return err
		})
		switch {
		case strings.HasSuffix(out, ended(nil)):
			dropping = append(dropping, name)
		case !strings.HasSuffix(name, "-legacy"):
			t.Fatalf("%s: %s", name, out)
		}
	}
	return dropping
}

// ready returns nil when the speaker is ready.
func ready(ctx context.Context, socket string) error {
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://speaker/readyz", nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("readyz: %s", resp.Status)
	}
	return nil
}

// await waits until probe succeeds or the program has ended.
func await(t *testing.T, ended <-chan error, probe func() error) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		err := probe()
		if err == nil {
			return
		}
		select {
		case err := <-ended:
			t.Fatalf("ended: %v", err)
		default:
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

// A syncBuffer can be read while a program writes to it.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
