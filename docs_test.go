package fanfare

import (
	"fmt"
	"go/ast"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Every package has a comment that describes it: in doc.go or, for a command, in main.go.
func TestPackagesAreDocumented(t *testing.T) {
	documented := map[string]bool{}
	for _, s := range sources(t) {
		if s.test() {
			continue
		}
		home := "doc.go"
		if s.main() {
			home = "main.go"
		}
		comment := s.file.Doc != nil && !ast.IsGenerated(s.file)
		if comment && path.Base(s.path) != home {
			t.Errorf("%s has the package comment, which belongs in %s", s.path, home)
		}
		documented[s.dir()] = documented[s.dir()] || comment
	}
	for dir, ok := range documented {
		if !ok {
			t.Errorf("package %s has no package comment", dir)
		}
	}
}

// Links between the documents have a target. External links are not followed, so that no
// test needs the Internet.
func TestLinks(t *testing.T) {
	for _, name := range files(t, ".md") {
		for _, l := range links(read(t, name)) {
			if why := dangling(t, name, l); why != "" {
				t.Errorf("%s: link to %s: %s", name, l, why)
			}
		}
	}
}

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

var (
	fenced = regexp.MustCompile("(?ms)^```.*?^```")
	inline = regexp.MustCompile("`[^`\n]*`")
	linked = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	header = regexp.MustCompile(`(?m)^#+ +(.*)$`)
	noSlug = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// links are the targets of links in a Markdown text, code left out.
func links(text string) []string {
	text = inline.ReplaceAllString(fenced.ReplaceAllString(text, ""), "")
	var targets []string
	for _, m := range linked.FindAllStringSubmatch(text, -1) {
		targets = append(targets, m[1])
	}
	return targets
}

// anchors are the names by which GitHub lets one link to headings.
func anchors(text string) []string {
	var names []string
	for _, m := range header.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
		slug := noSlug.ReplaceAllString(strings.ToLower(strings.TrimSpace(m[1])), "")
		names = append(names, strings.ReplaceAll(slug, " ", "-"))
	}
	return names
}

// dangling says what is wrong with a link in the file called name.
func dangling(t *testing.T, name, link string) string {
	t.Helper()
	if strings.Contains(link, "://") || strings.HasPrefix(link, "mailto:") {
		return ""
	}
	file, anchor, _ := strings.Cut(link, "#")
	target := name
	if file != "" {
		target = path.Join(path.Dir(name), file)
	}
	if _, err := os.Stat(target); err != nil {
		return "there is no such file"
	}
	if anchor == "" {
		return ""
	}
	if _, ok := anchorsOf[target]; !ok {
		anchorsOf[target] = anchors(read(t, target))
	}
	if !slices.Contains(anchorsOf[target], anchor) {
		return "there is no such heading"
	}
	return ""
}

// anchorsOf has the anchors of files that links name: many name the same file.
var anchorsOf = map[string][]string{}

func TestDangling(t *testing.T) {
	for _, tt := range []struct{ link, want string }{
		{"LICENSE", ""},
		{"../LICENSE", "there is no such file"},
		{"CONTRIBUTING.md#the-tree", ""},
		{"CONTRIBUTING.md#the-forest", "there is no such heading"},
		{"#the-forest", "there is no such heading"},
		{"nowhere.md", "there is no such file"},
		{"https://example.org/nowhere", ""},
	} {
		if got := dangling(t, "README.md", tt.link); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.link, got, tt.want)
		}
	}
}

func TestMarkdown(t *testing.T) {
	const text = "# A `b`: c, d\n[one](x.md) [two](y.md#z)\n```\n# no\n[three](no.md)\n```\n`[four](no.md)`\n"
	if got, want := fmt.Sprint(links(text)), "[x.md y.md#z]"; got != want {
		t.Errorf("links %s, want %s", got, want)
	}
	if got, want := fmt.Sprint(anchors(text)), "[a-b-c-d]"; got != want {
		t.Errorf("anchors %s, want %s", got, want)
	}
}

// What the documents tell people to type exists.
func TestMakeTargets(t *testing.T) {
	makefile := read(t, "Makefile")
	for _, name := range append(files(t, ".md"), "Makefile", ".ci/run") {
		for _, m := range regexp.MustCompile("(?m)(?:`|^ *|\\$ )make ([a-z0-9-]+)").FindAllStringSubmatch(read(t, name),
			-1) {
			if !strings.Contains(makefile, "\n"+m[1]+":") {
				t.Errorf("%s: make %s: the Makefile has no such target", name, m[1])
			}
		}
	}
}

// A file that a package comment or CONTRIBUTING.md names exists.
func TestNamedFiles(t *testing.T) {
	for _, s := range sources(t) {
		if path.Base(s.path) != "doc.go" || s.file.Doc == nil {
			continue
		}
		for _, name := range missingFiles(s.dir(), s.file.Doc.Text()) {
			t.Errorf("%s names %s, which does not exist", s.path, name)
		}
	}
	for _, name := range missingFiles(".", strings.ReplaceAll(read(t, "CONTRIBUTING.md"), "`doc.go`", "")) {
		t.Errorf("CONTRIBUTING.md names %s, which does not exist", name)
	}
}

// readAlone are packages of benchmarks, and of helpers for tests: a reader comes to one file of them
// from a test.
var readAlone = regexp.MustCompile(`^(e2e/(bench|kubelet|matrix|web|binary)|hack|internal/testing)(/|$)`)

// A package comment names every file of its package, so that it is the reading list. A package of
// one file beside doc.go needs none, and commands have main.go.
func TestReadingLists(t *testing.T) {
	byDir := map[string][]string{}
	text := map[string]string{}
	for _, s := range sources(t) {
		switch {
		case s.test() || s.main() || ast.IsGenerated(s.file) || readAlone.MatchString(s.dir()):
		case path.Base(s.path) == "doc.go":
			text[s.dir()] = s.file.Doc.Text()
		default:
			byDir[s.dir()] = append(byDir[s.dir()], path.Base(s.path))
		}
	}
	for dir, names := range byDir {
		if len(names) == 1 {
			continue
		}
		for _, name := range unnamed(text[dir], names) {
			t.Errorf("%s/doc.go does not name %s", dir, name)
		}
	}
}

// unnamed returns the files that text names neither literally nor by a pattern such as bfd_*.go.
func unnamed(text string, files []string) (rest []string) {
	named := fileName.FindAllString(text, -1)
	for _, f := range files {
		matches := func(pattern string) bool { ok, err := path.Match(pattern, f); return ok && err == nil }
		if !slices.ContainsFunc(named, matches) {
			rest = append(rest, f)
		}
	}
	return rest
}

func TestUnnamed(t *testing.T) {
	const text = "read bgp.go, the machine (bfd_*.go) and radv/watch.go"
	if got, want := fmt.Sprint(unnamed(text, []string{"bgp.go", "bfd_packet.go", "watch.go", "gp.go"})),
		"[watch.go gp.go]"; got != want {
		t.Errorf("unnamed %s, want %s", got, want)
	}
}

// A comment on a function or a type begins with its name, also after a rename. Tests say what holds
// instead.
func TestCommentsBeginWithTheName(t *testing.T) {
	for _, s := range sources(t) {
		if s.test() || ast.IsGenerated(s.file) {
			continue
		}
		for _, d := range s.file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				checkSubject(t, s, d.Name, d.Doc)
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					if spec, ok := spec.(*ast.TypeSpec); ok && len(d.Specs) == 1 {
						checkSubject(t, s, spec.Name, d.Doc)
					} else if ok {
						checkSubject(t, s, spec.Name, spec.Doc)
					}
				}
			}
		}
	}
}

func checkSubject(t *testing.T, s source, name *ast.Ident, doc *ast.CommentGroup) {
	t.Helper()
	if got := subject(doc.Text()); got != "" && got != name.Name {
		t.Errorf("%s: the comment on %s begins with %s", s.line(name), name.Name, got)
	}
}

// subject returns the first word of a comment, without an article; empty without a comment.
func subject(text string) string {
	words := strings.Fields(text)
	if len(words) > 1 && slices.Contains([]string{"A", "An", "The"}, words[0]) {
		words = words[1:]
	}
	if len(words) == 0 {
		return ""
	}
	return strings.TrimRight(strings.TrimSuffix(words[0], "'s"), ":,.;")
}

func TestSubject(t *testing.T) {
	for text, want := range map[string]string{
		"":                                "",
		"take takes.":                     "take",
		"A Flow's client.":                "Flow",
		"Idle: it waits.":                 "Idle",
		"The entry of a client, not old.": "entry",
	} {
		if got := subject(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

var (
	fileName = regexp.MustCompile(`[\w.*/-]+\.(?:go|md|sh|nft|conf)\b`)
	webPage  = regexp.MustCompile(`https?://[\w./-]+`)
)

// missingFiles returns the names of files in text that are neither in dir nor at the root.
func missingFiles(dir, text string) (missing []string) {
	for _, name := range fileName.FindAllString(webPage.ReplaceAllString(text, ""), -1) {
		// The docs' pages are named without their directory, which the text says once.
		places := []string{path.Join(dir, name), name, path.Join("docs/concepts", name)}
		exists := func(p string) bool { m, err := filepath.Glob(p); return err == nil && len(m) > 0 }
		if !slices.ContainsFunc(places, exists) {
			missing = append(missing, name)
		}
	}
	return missing
}

func TestMissingFiles(t *testing.T) {
	const text = "read bgp.go and phantom.go, then docs/README.md, ../bgp/*.go and docs/phantom.md at " +
		"https://go.dev/x.md."
	if got, want := fmt.Sprint(missingFiles("bgp", text)), "[phantom.go docs/phantom.md]"; got != want {
		t.Errorf("missing %s, want %s", got, want)
	}
}
