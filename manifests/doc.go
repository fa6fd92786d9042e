// Package manifests embeds the CRDs, so that a program brings those of its own version.
// kustomization.yaml lists everything that an installation needs; charts/fanfare installs the
// same objects by Helm.
package manifests

import "embed"

//go:generate go run ../hack/chart ../charts/fanfare

// CRDs are the files of the directory crds, which controller-gen writes.
//
//go:embed crds/*.yaml
var CRDs embed.FS
