package cluster

import (
	"cmp"
	"strings"
)

// A Key names an object. The namespace of cluster-scoped kinds is empty.
type Key struct {
	Kind string
	Name Name
}

// Named returns the key of an object without a namespace.
func Named(kind, name string) Key { return Key{kind, Name{Name: name}} }

// String returns kind and name, such as "AddressPool lan" or "Service shop/web".
func (k Key) String() string {
	switch {
	case k.Name == Name{}:
		return k.Kind
	case k.Name.Namespace == "":
		return k.Kind + " " + k.Name.Name
	}
	return k.Kind + " " + k.Name.String()
}

// Compare orders by kind, then name.
func (k Key) Compare(o Key) int { return cmp.Or(cmp.Compare(k.Kind, o.Kind), k.Name.Compare(o.Name)) }

// MarshalText returns the same text as String.
func (k Key) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText reads the text of MarshalText, as far as it can tell the parts: the key has the same text.
func (k *Key) UnmarshalText(text []byte) error {
	kind, name, _ := strings.Cut(string(text), " ")
	*k = Named(kind, name)
	if namespace, own, found := strings.Cut(name, "/"); found && namespace != "" {
		k.Name = Name{namespace, own}
	}
	return nil
}

// A Name is a namespaced name.
type Name struct {
	Namespace, Name string
}

func (n Name) String() string { return n.Namespace + "/" + n.Name }

// Compare orders by namespace, then name.
func (n Name) Compare(o Name) int {
	return cmp.Or(cmp.Compare(n.Namespace, o.Namespace), cmp.Compare(n.Name, o.Name))
}
