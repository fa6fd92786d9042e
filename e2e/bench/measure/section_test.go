package measure

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// In any order, each author replaces its own section and leaves the others.
func TestWriteSection(t *testing.T) {
	path := filepath.Join(t.TempDir(), "numbers.md")
	write := func(author, text string) {
		t.Helper()
		if err := WriteSection(path, author, text); err != nil {
			t.Fatal(err)
		}
	}
	write("a", "first")
	write("b", "\nsecond\n\n")
	write("a", "third")
	write("b", "fourth")
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const want = "<!-- a: begin -->\n\nthird\n\n<!-- a: end -->\n\n<!-- b: begin -->\n\nfourth\n\n<!-- b: end -->\n"
	if string(got) != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// What people wrote around a section stays.
func TestReplaceSection(t *testing.T) {
	const document = "# Numbers\n\n<!-- a: begin -->\n\nold\n\n<!-- a: end -->\nend\n"
	got, err := replaceSection(document, "a", "new")
	if want := strings.Replace(document, "old", "new", 1); got != want || err != nil {
		t.Errorf("%v, got\n%s", err, got)
	}
	for _, broken := range []string{"<!-- a: begin -->\n", "<!-- a: end -->\n", "<!-- a: end -->\n<!-- a: begin -->\n"} {
		if got, err := replaceSection(broken, "a", "new"); err == nil {
			t.Errorf("%q became %q", broken, got)
		}
	}
}

// A folder that does not exist is an error, and so is a document that is a folder.
func TestWriteSectionFails(t *testing.T) {
	for _, path := range []string{filepath.Join(t.TempDir(), "none", "a.md"), t.TempDir()} {
		if err := WriteSection(path, "a", "text"); err == nil {
			t.Errorf("%s was written", path)
		}
	}
}
