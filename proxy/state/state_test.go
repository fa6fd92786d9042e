package state_test

import (
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/fanfare-lb/fanfare/proxy/state"
)

// Two VIPs are equal until any of their fields, at any depth, is another: one that Equal
// forgot would not reach the kernel.
func TestVIPEqual(t *testing.T) {
	backends := func() []state.Backend {
		return []state.Backend{{Addr: netip.MustParseAddrPort("10.0.0.1:80"), Node: "n1", Weight: 1}}
	}
	vip := func() *state.VIP {
		return &state.VIP{Addr: netip.MustParseAddr("192.0.2.1"), Frontends: []state.Frontend{{
			Protocol: state.TCP, Port: 80, Name: "shop/web", Scheduler: state.RoundRobin, Affinity: time.Second,
			External: state.Target{Backends: backends(), Miss: state.Drop, Remote: state.Preserve},
			Internal: state.Target{Backends: backends(), Miss: state.Drop, Remote: state.Preserve},
			Sources:  []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")},
			Draining: []netip.AddrPort{netip.MustParseAddrPort("10.0.0.2:80")},
		}}}
	}
	if !vip().Equal(vip()) {
		t.Error("built twice, and not equal")
	}
	changed := vip()
	each(reflect.ValueOf(changed).Elem(), "VIP", func(field string, v reflect.Value) {
		was := reflect.New(v.Type()).Elem()
		was.Set(v)
		v.SetZero()
		if changed.Equal(vip()) || vip().Equal(changed) {
			t.Errorf("equal to one without %s", field)
		}
		v.Set(was)
	})
	changed.Frontends[0].Sources = []netip.Prefix{}
	open := vip()
	open.Frontends[0].Sources = nil
	if changed.Equal(open) {
		t.Error("without any source, and equal to one for all")
	}
}

// each calls do with every field of v, those of structs of this package and of slices'
// elements included.
func each(v reflect.Value, name string, do func(field string, v reflect.Value)) {
	for i := range v.NumField() {
		f, field := v.Field(i), name+"."+v.Type().Field(i).Name
		do(field, f)
		if f.Kind() == reflect.Slice && f.Type().Elem().Kind() == reflect.Struct && own(f.Type().Elem()) {
			each(f.Index(0), field, do)
		} else if f.Kind() == reflect.Struct && own(f.Type()) {
			each(f, field, do)
		}
	}
}

func own(t reflect.Type) bool { return t.PkgPath() == reflect.TypeFor[state.VIP]().PkgPath() }
