package lab

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
)

// Missing returns what this machine lacks for a lab: root, or one of the lab's programs or
// of the given ones. It returns nil if nothing is missing.
func Missing(besides ...string) error {
	if os.Geteuid() != 0 {
		return errors.New("the lab needs root")
	}
	for _, program := range append([]string{"ip", "nft", "vtysh", "conntrack", "/usr/lib/frr/bgpd"}, besides...) {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("the lab needs %w; hack/setup.sh installs it", err)
		}
	}
	return nil
}
