package kubelet

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// A recipe runs the commands of pages of the documentation as an operator with the repository
// and a kubeconfig at its usual place, in a folder of its own.
type recipe struct {
	*testing.T
	c   *cluster
	dir string
}

func newRecipe(t *testing.T, c *cluster) *recipe {
	t.Helper()
	repository, err := filepath.Abs("../..")
	must(t, err)
	r := &recipe{t, c, t.TempDir()}
	must(t, errors.Join(
		os.MkdirAll(filepath.Join(r.dir, ".kube"), 0o755),
		os.Symlink(c.kubeconfig, filepath.Join(r.dir, ".kube/config")),
		os.Symlink(c.tools, filepath.Join(r.dir, "kubectl")),
		// make image has built it.
		os.Symlink(filepath.Join(c.Dir(), "image/fanfare"), filepath.Join(r.dir, "fanfare")),
		os.Symlink(filepath.Join(repository, "manifests"), filepath.Join(r.dir, "manifests")),
	))
	return r
}

// run runs commands and returns what they print. The commands must succeed.
func (r *recipe) run(commands string) string {
	r.Helper()
	out, err := r.try(r.Context(), commands)
	if err != nil {
		r.Fatalf("%s\n%v\n%s", commands, err, out)
	}
	return out
}

func (r *recipe) try(ctx context.Context, commands string) (string, error) {
	env := []string{"env", "--chdir=" + r.dir, "HOME=" + r.dir, "PATH=" + r.dir + ":/usr/bin:/bin"}
	return r.c.Namespace(controlPlane).Run(ctx, append(env, "bash", "-euo", "pipefail", "-c", commands)...)
}

// step runs a block of commands that follows a heading of a page, the first one unless another is
// asked for, with NODE replaced.
func (r *recipe) step(page, heading string, block int, node string) string {
	r.Helper()
	text, err := os.ReadFile("../../docs/" + page)
	must(r.T, err)
	_, section, found := strings.Cut(string(text), "\n## "+heading+"\n")
	if !found {
		r.Fatalf("docs/%s has no heading %q", page, heading)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	commands := commandBlocks(section)
	if block >= len(commands) {
		r.Fatalf("docs/%s has %d blocks of commands below %q: want number %d", page, len(commands), heading, block+1)
	}
	return r.run(strings.ReplaceAll(commands[block], "NODE", node))
}

var fenced = regexp.MustCompile("(?sm)^```(\\w*)\n(.*?)^```$")

// commandBlocks returns the blocks of a section that name no language.
func commandBlocks(section string) (blocks []string) {
	for _, m := range fenced.FindAllStringSubmatch(section, -1) {
		if m[1] == "" {
			blocks = append(blocks, m[2])
		}
	}
	return blocks
}

// inline runs a command that a page has outside of the blocks, or in a longer one, with NODE replaced.
func (r *recipe) inline(command, node string) string {
	r.Helper()
	text, err := os.ReadFile("../../docs/" + movePage)
	must(r.T, err)
	if !strings.Contains(string(text), command) {
		r.Fatalf("docs/%s does not have %s", movePage, command)
	}
	return r.run(strings.ReplaceAll(command, "NODE", node))
}
