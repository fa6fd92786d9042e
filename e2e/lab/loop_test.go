package lab

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

func TestLoop(t *testing.T) {
	l := laboratory(t)
	for i := range 12 {
		for _, st := range Steps() {
			if !strings.Contains(os.Getenv("STEPS"), st.Name) {
				continue
			}
			s := &Scene{Lab: l}
			err := st.Run(t.Context(), s)
			fmt.Println(i, st.Name, err, strings.Join(s.Lines, "\n   "))
			if err != nil {
				os.WriteFile("/tmp/n1.log", []byte(l.Speaker("n1").Log()), 0o644)
				os.WriteFile("/tmp/n2.log", []byte(l.Speaker("n2").Log()), 0o644)
			}
		}
	}
	fmt.Println(l.Observer.Verdict(Linger))
}
