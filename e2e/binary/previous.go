package binary

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Previous is the commit whose program must be upgradable to this one, and this one downgradable to
// it. The first release will take its place: docs/releases.md promises it for neighbouring minor
// versions. A change that breaks it is under "Action required" in the changelog, and moves this
// constant.
const Previous = "3d17a245da8f1671208b25415d03855bcfdaafd8"

// ErrNoCommit is the error of a clone without a commit, whose origin does not give it either.
var ErrNoCommit = errors.New("neither this clone has the commit nor its origin; git fetch --unshallow gets all")

// BuildPrevious builds the program of the commit Previous at path, with its own dependencies. The error may be
// [ErrNoCommit].
func BuildPrevious(ctx context.Context, path string) error {
	root, err := SourceRoot(ctx)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "fanfare-previous-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	source := filepath.Join(dir, "source")
	if err = checkOut(ctx, root, Previous, source); err == nil {
		err = buildFanfare(ctx, source, "fanfare-"+Previous[:7], path)
	}
	if err != nil {
		return fmt.Errorf("the program of commit %s: %w", Previous, err)
	}
	return nil
}

// checkOut writes the files of a commit to a new folder. A shallow clone does not have an old commit,
// and fetches it from its origin into a repository of its own, so that the clone remains as it is.
func checkOut(ctx context.Context, clone, commit, to string) error {
	repository := clone
	if _, err := git(ctx, clone, "cat-file", "-e", commit+"^{commit}"); err != nil {
		repository = to + ".git"
		if err := fetch(ctx, clone, commit, repository); err != nil {
			return fmt.Errorf("%w: %w", ErrNoCommit, err)
		}
	}
	archive := to + ".tar"
	_, err := git(ctx, repository, "archive", "--output="+archive, commit)
	if err := errors.Join(err, os.Mkdir(to, 0o755)); err != nil {
		return err
	}
	if out, err := exec.CommandContext(ctx, "tar", "--extract", "--directory="+to,
		"--file="+archive).CombinedOutput(); err != nil {
		return fmt.Errorf("tar: %w: %s", err, out)
	}
	return nil
}

func fetch(ctx context.Context, clone, commit, to string) error {
	origin, err := git(ctx, clone, "remote", "get-url", "origin")
	if err != nil {
		return err
	}
	if _, err := git(ctx, clone, "init", "--quiet", "--bare", to); err != nil {
		return err
	}
	_, err = git(ctx, to, "fetch", "--quiet", "--depth=1", origin, commit)
	return err
}

// git runs git in a repository of any owner: containers of CI run as root.
func git(ctx context.Context, repository string, args ...string) (string, error) {
	args = append([]string{"-c", "safe.directory=*", "-C", repository}, args...)
	out, err := exec.CommandContext(ctx, "git", args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("git %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out)), nil
}
