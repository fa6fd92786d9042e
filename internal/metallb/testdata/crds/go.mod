// MetalLB's CRDs, which the table of fields is compared with. Nothing of this module is built.
module github.com/fanfare-lb/fanfare/internal/metallb/testdata/crds

go 1.25.0

require go.universe.tf/metallb v0.16.1
