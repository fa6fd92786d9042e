package lab

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
)

// Missing says what a lab needs and this machine does not have: root, and programs,
// those included that its user needs besides. It is nil when all is there.
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
