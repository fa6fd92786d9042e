package main

import (
	"context"
	"crypto/md5"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// programs are what fanfare starts. Plain iptables is not among them: its name
// does not say which of the two it is.
func programs() []string {
	names := []string{"/usr/sbin/nft"}
	for _, family := range []string{"iptables", "ip6tables"} {
		for _, backend := range []string{"nft", "legacy"} {
			name := "/usr/sbin/" + family + "-" + backend
			names = append(names, name, name+"-save", name+"-restore")
		}
	}
	return names
}

// names are the tables by which nft and iptables turn names in rules, such as
// tcp, into numbers.
var names = []string{"/etc/protocols", "/etc/services"}

// There is no name service, so these two are for tools that inspect the image. The
// second user is that of containers which need no rights.
const (
	passwd = "root:x:0:0:root:/:/usr/sbin/nologin\nnonroot:x:65532:65532:nonroot:/:/usr/sbin/nologin\n"
	group  = "root:x:0:\nnonroot:x:65532:\n"
)

// debian is the layer with Debian's files, and which packages they are from. CA
// certificates are not in it: the API server's comes with the pod's account, and
// nothing else is spoken to by TLS.
func (s system) debian(ctx context.Context) (tree, []debianPackage, error) {
	t := tree{}
	t.text("etc/passwd", passwd)
	t.text("etc/group", group)
	if err := s.mergedUsr(t); err != nil {
		return nil, nil, err
	}
	wanted, err := s.closure()
	if err != nil {
		return nil, nil, err
	}
	var real []string
	for _, name := range wanted {
		path, err := s.take(t, name)
		if err != nil {
			return nil, nil, err
		}
		real = append(real, path)
	}
	packages, err := s.owners(ctx, real)
	if err != nil {
		return nil, nil, err
	}
	var described []debianPackage
	for _, p := range slices.Sorted(maps.Keys(packages)) {
		about, err := s.document(ctx, t, p)
		if err != nil {
			return nil, nil, err
		}
		if err := s.verify(ctx, p, packages[p]); err != nil {
			return nil, nil, err
		}
		described = append(described, about)
	}
	return t, described, s.commonLicenses(t)
}

// mergedUsr takes over the links from / into /usr.
func (s system) mergedUsr(t tree) error {
	for _, dir := range []string{"/bin", "/sbin", "/lib", "/lib64"} {
		target, err := s.readlink(dir)
		switch {
		case errors.Is(err, fs.ErrNotExist): // not every architecture has all of them
		case err != nil:
			return err
		case target != "":
			t[dir[1:]] = file{target: target}
		}
	}
	return nil
}

// closure is all the files that the programs need to run.
func (s system) closure() ([]string, error) {
	// Reading a node's rules needs all matches and targets, not only the
	// ones written here.
	plugins, err := filepath.Glob(s.at("/usr/lib/" + triplets[s.arch] + "/xtables/*.so"))
	if err != nil {
		return nil, err
	}
	for i, p := range plugins {
		plugins[i] = "/" + strings.TrimPrefix(p, strings.TrimSuffix(s.root, "/")+"/")
	}
	if len(plugins) == 0 {
		return nil, errors.New("iptables: no plug-ins in /usr/lib/*/xtables")
	}
	linked := append(programs(), plugins...)
	libraries, err := s.libraries(linked)
	// The release is for people and programs that ask what is in an image.
	return slices.Concat(linked, libraries, names, []string{"/etc/os-release"}), err
}

// owners finds the packages that files came with, and under what paths: a package
// may have been made before / and /usr became one.
func (s system) owners(ctx context.Context, files []string) (map[string][]string, error) {
	asked := map[string]string{} // path that a package may know -> file
	for _, f := range files {
		asked[f], asked[strings.TrimPrefix(f, "/usr")] = f, f
	}
	// It fails because it cannot know all of them. What counts is the check below.
	out, err := s.dpkg(ctx, append([]string{"--search"}, slices.Sorted(maps.Keys(asked))...)...)
	if out == "" {
		return nil, err
	}
	packages, owned := map[string][]string{}, map[string]bool{}
	for line := range strings.Lines(out) {
		// Two packages can share a directory, but not a file.
		owner, path, ok := strings.Cut(strings.TrimSpace(line), ": ")
		if file, known := asked[path]; ok && known && !strings.Contains(owner, " ") {
			packages[owner] = append(packages[owner], path)
			owned[file] = true
		}
	}
	for _, f := range files {
		if !owned[f] {
			return nil, fmt.Errorf("%s: of no Debian package", f)
		}
	}
	return packages, nil
}

// A debianPackage is a package that the image has files of.
type debianPackage struct {
	name, version, architecture string
	license                     license
}

// document puts in what says where a package's files are from and what their licenses are.
// Programs that look for vulnerable packages read status.d.
func (s system) document(ctx context.Context, t tree, name string) (debianPackage, error) {
	status, err := s.dpkg(ctx, "--status", name)
	if err != nil {
		return debianPackage{}, err
	}
	plain, _, _ := strings.Cut(name, ":")
	t.text("var/lib/dpkg/status.d/"+plain, status)
	where, err := s.take(t, "/usr/share/doc/"+plain+"/copyright")
	if err != nil {
		return debianPackage{}, err
	}
	about, err := s.dpkg(ctx, "--show", "--showformat=${Version} ${Architecture}", name)
	version, architecture, _ := strings.Cut(about, " ")
	return debianPackage{plain, version, architecture, debianLicense(plain, string(t[where[1:]].content))}, err
}

// dpkg asks the system's database of packages.
func (s system) dpkg(ctx context.Context, args ...string) (string, error) {
	return output(ctx, "dpkg-query", append([]string{"--admindir=" + s.at("/var/lib/dpkg")}, args...)...)
}

// verify refuses files that are not as their package brought them.
func (s system) verify(ctx context.Context, name string, files []string) error {
	// Sums of a package's files, and of its configuration files. The former have no slash in front.
	sums, err := s.dpkg(ctx, "--control-show", name, "md5sums")
	if err != nil {
		return err
	}
	conffiles, err := s.dpkg(ctx, "--show", "--showformat=${Conffiles}\n", name)
	if err != nil {
		return err
	}
	want := map[string]string{}
	for line := range strings.Lines(sums) {
		if sum, path, ok := strings.Cut(strings.TrimSpace(line), "  "); ok {
			want["/"+path] = sum
		}
	}
	for line := range strings.Lines(conffiles) {
		if f := strings.Fields(line); len(f) >= 2 {
			want[f[0]] = f[1]
		}
	}
	for _, f := range files {
		content, err := os.ReadFile(s.at(f))
		if err != nil {
			return err
		}
		if got := fmt.Sprintf("%x", md5.Sum(content)); got != want[f] {
			return fmt.Errorf("%s: not the file of package %s any more: reinstall it", f, name)
		}
	}
	return nil
}

// commonLicense matches the place of a license that Debian's packages refer to
// instead of having it themselves.
var commonLicense = regexp.MustCompile(`/usr/share/common-licenses/[A-Za-z0-9.-]*[A-Za-z0-9]`)

// commonLicenses takes over the licenses that the copyright files refer to.
func (s system) commonLicenses(t tree) error {
	referred := map[string]bool{}
	for name, f := range t {
		if strings.HasPrefix(name, "usr/share/doc/") {
			for _, license := range commonLicense.FindAllString(string(f.content), -1) {
				referred[license] = true
			}
		}
	}
	for license := range referred {
		if _, err := s.take(t, license); err != nil {
			return err
		}
	}
	return nil
}

// output runs a program. What it wrote is returned also when it failed.
func output(ctx context.Context, name string, args ...string) (string, error) {
	var out, complaint strings.Builder
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s: %w: %s", name, err, strings.TrimSpace(complaint.String()))
	}
	return out.String(), nil
}
