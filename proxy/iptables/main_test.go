package iptables

import (
	"os"
	"testing"

	"github.com/fanfare-lb/fanfare/internal/testing/nstest"
)

func TestMain(m *testing.M) { os.Exit(nstest.Main(m)) }
