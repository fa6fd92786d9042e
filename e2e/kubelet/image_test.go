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
)

// podImage is the image of every container of the tests, and of every sandbox.
const podImage = "fanfare.test/pod:e2e"

// buildPodImage builds an image of the program ./pod, without a registry and without a
// daemon.
func buildPodImage(dir string) (path string, err error) {
	program := filepath.Join(dir, "pod")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", program, "./pod")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build ./pod: %w: %s", err, out)
	}
	text, err := os.ReadFile(program)
	if err != nil {
		return "", err
	}
	archive, err := imageOf([]string{podImage}, []string{"/pod"}, file{"/pod", 0o755, text})
	if err != nil {
		return "", err
	}
	path = filepath.Join(dir, "pod.tar")
	return path, os.WriteFile(path, archive, 0o644)
}

// buildFanfareImage builds the image for users from the current source. It skips make
// setup, whose packages are installed.
func buildFanfareImage(dir string) (path string, err error) {
	path = filepath.Join(dir, "fanfare.tar")
	cmd := exec.Command("make", "-C", "../..", "-o", "setup", "image", "IMAGE="+path)
	cmd.Env = append(os.Environ(), "MAKEFLAGS=") // not the flags of a make that runs the tests
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("make image: %w: %s", err, out)
	}
	return path, nil
}

// imageOf returns an image in the format of `docker save`: a layer, a configuration that names the
// layer by its content's digest, and a manifest that names both. The command begins with a program.
func imageOf(names, command []string, files ...file) ([]byte, error) {
	layer, err := tarOf(files...)
	if err != nil {
		return nil, err
	}
	config, err := json.Marshal(map[string]any{
		"os": "linux", "architecture": runtime.GOARCH,
		"config": map[string]any{"Entrypoint": command[:1], "Cmd": command[1:]},
		"rootfs": map[string]any{
			"type": "layers", "diff_ids": []string{fmt.Sprintf("sha256:%x", sha256.Sum256(layer))},
		},
	})
	if err != nil {
		return nil, err
	}
	manifest, err := json.Marshal([]map[string]any{{
		"Config": "config.json", "RepoTags": names, "Layers": []string{"layer.tar"},
	}})
	if err != nil {
		return nil, err
	}
	return tarOf(file{"layer.tar", 0o644, layer}, file{"config.json", 0o644, config},
		file{"manifest.json", 0o644, manifest})
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
