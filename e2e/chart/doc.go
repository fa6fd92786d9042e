// Package chart tests what charts/fanfare and overlays/ render to, by Helm and by kubectl:
// without values the chart has the objects of manifests/, so that the two cannot drift apart,
// and with values those of the overlay that says the same. e2e/kubelet installs the chart.
//
// The package contains only tests.
package chart
