package binary

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// A commit's files come from the clone, from the origin of a shallow clone, or not at all.
func TestCheckOut(t *testing.T) {
	dir, ctx := t.TempDir(), t.Context()
	full, shallow := filepath.Join(dir, "full"), filepath.Join(dir, "shallow")
	must := func(repository string, args ...string) string {
		t.Helper()
		out, err := git(ctx, repository, args...)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	must(dir, "init", "--quiet", full)
	for _, content := range []string{"old", "new"} {
		if err := os.WriteFile(filepath.Join(full, "file"), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		must(full, "add", "file")
		must(full, "-c", "user.name=t", "-c", "user.email=t@example.com", "commit", "--quiet", "--message="+content)
	}
	old := must(full, "rev-parse", "HEAD~1")
	must(dir, "clone", "--quiet", "--depth=1", "file://"+full, shallow)
	for _, clone := range []string{full, shallow} {
		to := filepath.Join(dir, "files of "+filepath.Base(clone))
		if err := checkOut(ctx, clone, old, to); err != nil {
			t.Fatal(err)
		}
		if text, err := os.ReadFile(filepath.Join(to, "file")); string(text) != "old" {
			t.Errorf("%s: %q, %v", clone, text, err)
		}
	}
	if n := must(shallow, "rev-list", "--count", "--all"); n != "1" {
		t.Errorf("the shallow clone has %s commits now", n)
	}
	must(shallow, "remote", "remove", "origin")
	if err := checkOut(ctx, shallow, old, filepath.Join(dir, "none")); !errors.Is(err, ErrNoCommit) {
		t.Errorf("without an origin: %v", err)
	}
}
