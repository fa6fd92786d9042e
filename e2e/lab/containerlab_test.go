package lab

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// clabFiles returns the files that containerlab takes for topologies.
func clabFiles(t *testing.T) (files []string) {
	t.Helper()
	await(t, filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && slices.Contains([]string{".git", ".cache", "bin"}, d.Name()) {
			return filepath.SkipDir
		}
		if strings.HasSuffix(path, ".clab.yml") || strings.HasSuffix(path, ".clab.yaml") {
			files = append(files, path)
		}
		return err
	}))
	return files
}

// readAsContainerlab runs a program with containerlab's own types on a file.
func readAsContainerlab(ctx context.Context, file string) (nodes string, err error) {
	path, err := filepath.Abs(file)
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, "go", "run", ".", path)
	cmd.Dir = "../containerlab/strict"
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%w: %s", err, stderr.String())
	}
	return stdout.String(), nil
}

// `containerlab deploy` needs no -t where a folder has one topology, and reads each field.
func TestContainerlabAcceptsTopology(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles a part of containerlab, which takes a minute")
	}
	t.Parallel()
	folders := map[string]string{}
	for _, file := range clabFiles(t) {
		if other := folders[filepath.Dir(file)]; other != "" {
			t.Errorf("%s and %s are in one folder: containerlab would ask which", file, other)
		}
		folders[filepath.Dir(file)] = file
		nodes, err := readAsContainerlab(t.Context(), file)
		await(t, err)
		if lines := strings.Count(nodes, "\n"); lines != 11 ||
			!strings.Contains(nodes, `n1 kind=linux image=fanfare-lab cmd=["sh" "/usr/local/bin/await-route"`) {
			t.Errorf("%s: containerlab reads %d nodes, want 11:\n%s", file, lines, nodes)
		}
	}
	if len(folders) == 0 {
		t.Error("there is no topology file")
	}
}

func TestContainerlabRefusesMistake(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles a part of containerlab, which takes a minute")
	}
	t.Parallel()
	text, err := os.ReadFile("../containerlab/fanfare.clab.yml")
	await(t, err)
	for mistake, want := range map[string][3]string{
		"a field that containerlab lacks": {"image-pull-policy:", "image-pull-politeness:", "image-pull-politeness"},
		"a link to a node that is not":    {`"client:eth1"`, `"customer:eth1"`, "customer"},
		"a node without an image":         {"image: fanfare-lab", "", "image"},
	} {
		file := filepath.Join(t.TempDir(), "broken.clab.yml")
		await(t, os.WriteFile(file, []byte(strings.Replace(string(text), want[0], want[1], 1)), 0o600))
		if _, err := readAsContainerlab(t.Context(), file); err == nil || !strings.Contains(err.Error(), want[2]) {
			t.Errorf("%s: %v: want an error with %q", mistake, err, want[2])
		}
	}
}

// The script of `make containerlab` tells the story on namespaces too: there, docker and
// containerlab are small programs that run its commands in them.
func TestContainerlabScript(t *testing.T) {
	l, ctx := laboratory(t), t.Context()
	tree := t.TempDir()
	for _, file := range []string{"hack/containerlab.sh", "e2e/containerlab/examples/web.yaml"} {
		text, err := os.ReadFile(filepath.Join("../..", file))
		await(t, err)
		await(t, os.MkdirAll(filepath.Dir(filepath.Join(tree, file)), 0o755))
		await(t, os.WriteFile(filepath.Join(tree, file), text, 0o600))
	}
	await(t, os.Symlink(l.path("cluster"), filepath.Join(tree, "e2e/containerlab/cluster")))
	programs := filepath.Join(tree, "bin")
	await(t, os.Mkdir(programs, 0o755))
	await(t, os.WriteFile(filepath.Join(programs, "docker"), []byte(l.dockerScript()), 0o700))
	calls := filepath.Join(tree, "calls")
	await(t, os.WriteFile(filepath.Join(programs, "containerlab"), []byte("#!/bin/sh\necho \"$@\" >>"+calls+"\n"),
		0o700))

	cmd := exec.CommandContext(ctx, "bash", filepath.Join(tree, "hack/containerlab.sh"))
	cmd.Env = append(os.Environ(), "PATH="+programs+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Error(err)
	}
	if n := strings.Count("\n"+string(out), "\nok: "); n != 6 {
		t.Errorf("%d checks: want 6", n)
	}
	ran, err := os.ReadFile(calls)
	await(t, err)
	if want := "deploy --topo fanfare.clab.yml --reconfigure\ndestroy --topo fanfare.clab.yml --cleanup\n"; string(
		ran) != want {
		t.Errorf("containerlab %q: want %q", ran, want)
	}
	if _, err := os.Stat(l.path("cluster", "web.yaml")); !os.IsNotExist(err) {
		t.Errorf("the example is still there: %v", err)
	}
	routed := regexp.MustCompile(`routes to ([0-9.]+) by all`).FindSubmatch(out)
	if routed == nil {
		t.Fatal("the script named no address")
	}
	await(t, l.Router.AwaitNextHops(ctx, Settle, netip.MustParseAddr(string(routed[1]))))
}

// dockerScript is a program that runs the commands of `docker exec` in the lab's namespaces.
func (l *Lab) dockerScript() string {
	return fmt.Sprintf(`#!/bin/sh
[ "$1" = exec ] || exit 0
node=${2#clab-fanfare-}
shift 2
if [ "$1" = fanfare ]; then
    shift
    exec ip netns exec %[1]s$node %[2]s "$@" --run-dir %[3]s/$node
fi
exec ip netns exec %[1]s$node "$@"
`, strings.TrimSuffix(l.namespaces["n1"].Name, "n1"), l.Binary, l.path("run"))
}
