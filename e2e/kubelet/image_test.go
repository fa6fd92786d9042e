package kubelet

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// podImage is what every container of the tests runs, and every sandbox.
const podImage = "fanfare.test/pod:e2e"

// buildPodImage makes an image of the program of ./pod, without a registry and
// without a daemon.
func buildPodImage(dir string) (path string, err error) {
	program, err := build("./pod", filepath.Join(dir, "pod"))
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, "pod.tar"), writeImage(filepath.Join(dir, "pod.tar"), podImage, "/pod", program)
}

// buildFanfareImage makes the image that manifests ask for, of this source and of
// the machine's nft with the libraries that it is linked to.
func buildFanfareImage(dir string) (path string, err error) {
	program, err := build("../../cmd/fanfare", filepath.Join(dir, "fanfare"))
	if err != nil {
		return "", err
	}
	files := []file{program}
	files[0].name = "/usr/sbin/fanfare"
	out, err := exec.Command("ldd", "/usr/sbin/nft").Output()
	if err != nil {
		return "", fmt.Errorf("ldd: %w", err)
	}
	for _, name := range append(strings.Fields(string(out)), "/usr/sbin/nft") {
		if !filepath.IsAbs(name) {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return "", err
		}
		files = append(files, file{name, 0o755, text})
	}
	path = filepath.Join(dir, "fanfare.tar")
	return path, writeImage(path, "docker.io/library/fanfare:latest", "/usr/sbin/fanfare", files...)
}

// build builds a static program, which is the file /NAME of an image.
func build(source, program string) (file, error) {
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", program, source)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return file{}, fmt.Errorf("go build %s: %w: %s", source, err, out)
	}
	text, err := os.ReadFile(program)
	return file{"/" + filepath.Base(program), 0o755, text}, err
}

// writeImage writes an image in the format of `docker save`: a layer, a
// configuration that names the layer by the digest of its content, and a manifest
// that names both.
func writeImage(path, name, entrypoint string, files ...file) error {
	layer, err := tarOf(files...)
	if err != nil {
		return err
	}
	config, err := json.Marshal(map[string]any{
		"os": "linux", "architecture": runtime.GOARCH,
		"config": map[string]any{"Entrypoint": []string{entrypoint}, "Env": []string{"PATH=/usr/sbin:/usr/bin"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{fmt.Sprintf("sha256:%x", sha256.Sum256(layer))}},
	})
	if err != nil {
		return err
	}
	manifest, err := json.Marshal([]map[string]any{{
		"Config": "config.json", "RepoTags": []string{name}, "Layers": []string{"layer.tar"},
	}})
	if err != nil {
		return err
	}
	archive, err := tarOf(file{"layer.tar", 0o644, layer}, file{"config.json", 0o644, config}, file{"manifest.json", 0o644, manifest})
	if err != nil {
		return err
	}
	return os.WriteFile(path, archive, 0o644)
}

type file struct {
	name string
	mode int64
	text []byte
}

func tarOf(files ...file) ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		if err := w.WriteHeader(&tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.text))}); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.text); err != nil {
			return nil, err
		}
	}
	return b.Bytes(), w.Close()
}
