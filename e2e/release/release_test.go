//go:build release

package release

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	v1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/yaml"

	"github.com/fanfare-lb/fanfare/e2e/kube"
)

const version = "v0.0.1-test"

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

func read(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestRelease(t *testing.T) {
	dir := t.TempDir()
	first, second := filepath.Join(dir, "first"), filepath.Join(dir, "second")
	for _, out := range []string{first, second} {
		run(t, "../../hack/release.sh", version, out)
	}
	t.Run("Reproducible", func(t *testing.T) { checkEqual(t, first, second) })
	t.Run("Sums", func(t *testing.T) {
		run(t, "env", "--chdir="+first, "sha256sum", "--check", "--strict", "SHA256SUMS")
	})
	l := unpack(t, filepath.Join(first, "fanfare-image.tar"), filepath.Join(dir, "layout"))
	t.Run("Image", func(t *testing.T) { checkIndex(t, l, first) })
	for arch, machine := range map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64} {
		t.Run(arch, func(t *testing.T) { checkPrograms(t, l, arch, machine, first) })
	}
	t.Run("Manifest", func(t *testing.T) { checkManifest(t, first, l.digest) })
	t.Run("Chart", func(t *testing.T) { checkChart(t, first, l.digest) })
	t.Run("SBOM", func(t *testing.T) { checkSBOM(t, first) })
	t.Run("Refuses", func(t *testing.T) {
		cmd := exec.CommandContext(t.Context(), "../../hack/release.sh", "1.2", filepath.Join(dir, "third"))
		if out, err := cmd.CombinedOutput(); err == nil ||
			!bytes.Contains(out, []byte("want a version such as v1.2.3")) {
			t.Errorf("version 1.2: %v, %s", err, out)
		}
	})
}

// checkEqual compares two releases of the same commit.
func checkEqual(t *testing.T, first, second string) {
	entries, err := os.ReadDir(first)
	if err != nil || len(entries) < 9 {
		t.Fatalf("%d files, %v", len(entries), err)
	}
	for _, e := range entries {
		if !bytes.Equal(read(t, filepath.Join(first, e.Name())), read(t, filepath.Join(second, e.Name()))) {
			t.Errorf("%s differs between two runs", e.Name())
		}
	}
}

// A layout is an unpacked OCI layout with one image index.
type layout struct {
	dir, digest string
	images      map[string]manifest // by architecture
}

type descriptor struct {
	Digest   string `json:"digest"`
	Platform struct {
		Architecture string `json:"architecture"`
		OS           string `json:"os"`
	} `json:"platform"`
}

type manifest struct {
	Manifests []descriptor `json:"manifests"`
	Config    descriptor   `json:"config"`
	Layers    []descriptor `json:"layers"`
}

func (l *layout) blob(t *testing.T, digest string) []byte {
	t.Helper()
	text := read(t, filepath.Join(l.dir, "blobs", strings.Replace(digest, ":", "/", 1)))
	if got := fmt.Sprintf("sha256:%x", sha256.Sum256(text)); got != digest {
		t.Fatalf("blob %s has the digest %s", digest, got)
	}
	return text
}

func (l *layout) manifest(t *testing.T, text []byte) (m manifest) {
	t.Helper()
	if err := json.Unmarshal(text, &m); err != nil {
		t.Fatal(err)
	}
	return m
}

func unpack(t *testing.T, archive, dir string) *layout {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	run(t, "tar", "--extract", "--directory="+dir, "--file="+archive)
	l := &layout{dir: dir, images: map[string]manifest{}}
	top := l.manifest(t, read(t, filepath.Join(dir, "index.json")))
	if len(top.Manifests) != 1 {
		t.Fatalf("%d images in index.json, want one index", len(top.Manifests))
	}
	l.digest = top.Manifests[0].Digest
	for _, d := range l.manifest(t, l.blob(t, l.digest)).Manifests {
		if d.Platform.OS == "linux" {
			l.images[d.Platform.Architecture] = l.manifest(t, l.blob(t, d.Digest))
		}
	}
	return l
}

// checkIndex checks that the index has an image for each architecture, and that install.yaml names it.
func checkIndex(t *testing.T, l *layout, release string) {
	if len(l.images) != 2 {
		t.Errorf("images for %d architectures, want 2", len(l.images))
	}
	for arch, m := range l.images {
		var config struct{ Architecture string }
		if err := json.Unmarshal(l.blob(t, m.Config.Digest), &config); err != nil || config.Architecture != arch {
			t.Errorf("the image for %s is configured for %s, %v", arch, config.Architecture, err)
		}
	}
	if !strings.Contains(string(read(t, filepath.Join(release, "install.yaml"))), l.digest) {
		t.Errorf("install.yaml does not name the image's digest %s", l.digest)
	}
}

// checkPrograms unpacks an image and runs its programs, those of another architecture by qemu.
func checkPrograms(t *testing.T, l *layout, arch string, machine elf.Machine, release string) {
	root := t.TempDir()
	for _, layer := range l.images[arch].Layers {
		if err := extract(root, l.blob(t, layer.Digest)); err != nil {
			t.Fatal(err)
		}
	}
	f, err := elf.Open(filepath.Join(root, "usr/bin/fanfare"))
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	if f.Machine != machine {
		t.Errorf("fanfare is for %s, want %s", f.Machine, machine)
	}
	if !bytes.Equal(read(t, filepath.Join(root, "usr/bin/fanfare")),
		read(t, filepath.Join(release, "fanfare-linux-"+arch))) {
		t.Error("the program in the image is not the one beside it")
	}
	// qemu has no netfilter, which two of them open before they look at their arguments: they have
	// found their libraries then.
	const noNetfilter = `Unable to initialize Netlink socket: Protocol not supported|initialize nft: Protocol not supported`
	for program, want := range map[string]string{
		"/usr/bin/fanfare": `^fanfare version ` + regexp.QuoteMeta(version), "/usr/sbin/nft": `^nftables v1`,
		"/usr/sbin/iptables-nft": `^iptables v1.*nf_tables`, "/usr/sbin/ip6tables-legacy": `^ip6tables v1.*legacy`,
	} {
		if arch != runtime.GOARCH && strings.Contains(program, "nft") {
			want = noNetfilter
		}
		if out := runIn(t, root, arch, program, "--version"); !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("%s --version: %q, want %s", program, out, want)
		}
	}
}

// runIn runs a program of an unpacked image. The loader and the libraries are the image's own.
func runIn(t *testing.T, root, arch, program string, args ...string) string {
	t.Helper()
	command := append([]string{"chroot", root, program}, args...)
	emulator := map[string]string{"amd64": "qemu-x86_64-static", "arm64": "qemu-aarch64-static"}[arch]
	if arch != runtime.GOARCH {
		command = append([]string{emulator, "-L", root, filepath.Join(root, program)}, args...)
	}
	out, err := exec.CommandContext(t.Context(), command[0], command[1:]...).CombinedOutput()
	if errors.Is(err, exec.ErrNotFound) {
		t.Fatalf("%v: install Debian's qemu-user-static", err)
	}
	return string(out)
}

// extract unpacks a layer.
func extract(root string, layer []byte) error {
	z, err := gzip.NewReader(bytes.NewReader(layer))
	if err != nil {
		return err
	}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		name := filepath.Join(root, h.Name)
		switch h.Typeflag {
		case tar.TypeDir:
			err = os.MkdirAll(name, 0o755)
		case tar.TypeSymlink:
			err = os.Symlink(h.Linkname, name)
		default:
			var text []byte
			if text, err = io.ReadAll(r); err == nil {
				err = os.WriteFile(name, text, fs.FileMode(h.Mode))
			}
		}
		if err != nil {
			return err
		}
	}
}

// checkManifest checks that install.yaml is what kustomize makes of the manifests, with the
// image by its digest.
func checkManifest(t *testing.T, release, digest string) {
	want := run(t, tools(t), "kubectl", "kustomize", "../../manifests")
	dir := t.TempDir()
	text := read(t, filepath.Join(release, "install.yaml"))
	for name, content := range map[string]string{
		"install.yaml":       string(text),
		"kustomization.yaml": "resources: [install.yaml]\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got := run(t, tools(t), "kubectl", "kustomize", dir)
	image := "ghcr.io/fanfare-lb/fanfare@" + digest
	if n := strings.Count(got, "image: "+image); n != 2 {
		t.Errorf("%d containers have the image %s, want 2", n, image)
	}
	if strings.ReplaceAll(got, image, "fanfare") != want {
		t.Error("install.yaml has other objects than manifests")
	}
	var cleanup v1.DaemonSet
	if err := yaml.Unmarshal(read(t, filepath.Join(release, "uninstall.yaml")), &cleanup); err != nil ||
		cleanup.Spec.Template.Spec.Containers[0].Image != image {
		t.Errorf("uninstall.yaml: %v, image %v", err, cleanup.Spec.Template.Spec.Containers)
	}
}

// checkChart checks that Helm takes the package, with the version and the image pinned.
func checkChart(t *testing.T, release, digest string) {
	archive := filepath.Join(release, "fanfare-"+strings.TrimPrefix(version, "v")+".tgz")
	run(t, tools(t), "helm", "lint", "--strict", archive)
	about := run(t, tools(t), "helm", "show", "chart", archive)
	for _, want := range []string{"\nversion: " + strings.TrimPrefix(version, "v") + "\n",
		"\nappVersion: " + version + "\n"} {
		if !strings.Contains("\n"+about, want) {
			t.Errorf("the chart says\n%s\nwant %q", about, want)
		}
	}
	rendered := run(t, tools(t), "helm", "template", "fanfare", archive)
	if n := strings.Count(rendered, "image: ghcr.io/fanfare-lb/fanfare@"+digest); n != 6 {
		t.Errorf("%d containers of the chart have the release's image, want 6", n)
	}
}

func tools(t *testing.T) string {
	t.Helper()
	name, err := kube.Tools(t.Context(), true)
	if err != nil {
		t.Fatal(err)
	}
	return name
}

// checkSBOM checks that the document names each package of the images with its version and its
// licenses, and has the texts of licenses without an identifier.
func checkSBOM(t *testing.T, release string) {
	var d struct {
		SPDXVersion   string `json:"spdxVersion"`
		Packages      []struct{ Name, SPDXID, VersionInfo, LicenseDeclared string }
		Relationships []struct{ RelatedSPDXElement string }
		Licenses      []struct{ LicenseID, ExtractedText string } `json:"hasExtractedLicensingInfos"`
	}
	if err := json.Unmarshal(read(t, filepath.Join(release, "fanfare.spdx.json")), &d); err != nil {
		t.Fatal(err)
	}
	texts := map[string]string{}
	for _, l := range d.Licenses {
		if texts[l.LicenseID] != "" || len(l.ExtractedText) < 100 {
			t.Errorf("%s is there twice, or has no text: %q", l.LicenseID, l.ExtractedText)
		}
		texts[l.LicenseID] = l.ExtractedText
	}
	count := map[string]int{}
	for _, p := range d.Packages {
		count[p.Name]++
		if p.VersionInfo == "" || p.LicenseDeclared == "NOASSERTION" {
			t.Errorf("%s has version %q and license %q", p.Name, p.VersionInfo, p.LicenseDeclared)
		}
		for _, id := range strings.Split(p.LicenseDeclared, " AND ") {
			if strings.HasPrefix(id, "LicenseRef-") && texts[id] == "" {
				t.Errorf("%s: the document has no text of %s", p.Name, id)
			}
		}
	}
	if d.SPDXVersion != "SPDX-2.3" || len(d.Relationships) != len(d.Packages) || len(d.Packages) < 80 {
		t.Errorf("%s with %d packages and %d relationships", d.SPDXVersion, len(d.Packages), len(d.Relationships))
	}
	// One for each architecture, and another for its newer nft; netbase is for all.
	for name, want := range map[string]int{
		"fanfare": 1, "nftables": 4, "libc6": 4, "iptables": 2, "netbase": 1, "std": 1, "github.com/osrg/gobgp/v4": 1,
	} {
		if count[name] != want {
			t.Errorf("%d packages %s, want %d", count[name], name, want)
		}
	}
}
