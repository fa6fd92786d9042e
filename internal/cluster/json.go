package cluster

import (
	"encoding/json"
	"errors"

	"k8s.io/apimachinery/pkg/labels"
)

// plainPeer is Peer without its methods.
type plainPeer Peer

// peerJSON has the selector as people write it.
type peerJSON struct {
	plainPeer
	NodeSelector string
}

// MarshalJSON is for snapshot files.
func (p *Peer) MarshalJSON() ([]byte, error) {
	return json.Marshal(peerJSON{plainPeer(*p), p.NodeSelector.String()})
}

// UnmarshalJSON is for snapshot files.
func (p *Peer) UnmarshalJSON(data []byte) error {
	var j peerJSON
	if err := json.Unmarshal(data, &j); err != nil {
		return err
	}
	selector, err := labels.Parse(j.NodeSelector)
	if err != nil {
		return err
	}
	*p = Peer(j.plainPeer)
	p.NodeSelector = selector
	return nil
}

// plainPool is Pool without its methods.
type plainPool Pool

type poolJSON struct {
	plainPool
	NamespaceSelector, ServiceSelector gateJSON
}

// MarshalJSON is for snapshot files.
func (p *Pool) MarshalJSON() ([]byte, error) {
	return json.Marshal(poolJSON{plainPool(*p), gateJSON{p.NamespaceSelector}, gateJSON{p.ServiceSelector}})
}

// UnmarshalJSON is for snapshot files.
func (p *Pool) UnmarshalJSON(data []byte) error {
	var j poolJSON
	if err := json.Unmarshal(data, &j); err != nil {
		return err
	}
	*p = Pool(j.plainPool)
	p.NamespaceSelector, p.ServiceSelector = j.NamespaceSelector.Selector, j.ServiceSelector.Selector
	return nil
}

// A gateJSON is a selector of which nil and one that matches nothing are others than
// one that matches everything.
type gateJSON struct{ labels.Selector }

// matchesNothing is no selector that could be written.
const matchesNothing = "!"

// MarshalJSON is for snapshot files.
func (g gateJSON) MarshalJSON() ([]byte, error) {
	if g.Selector == nil {
		return []byte("null"), nil
	}
	text := g.String()
	if _, selectable := g.Requirements(); !selectable {
		text = matchesNothing
	}
	return json.Marshal(text)
}

// UnmarshalJSON is for snapshot files.
func (g *gateJSON) UnmarshalJSON(data []byte) error {
	var text *string
	err := json.Unmarshal(data, &text)
	switch {
	case err != nil || text == nil:
		g.Selector = nil
	case *text == matchesNothing:
		g.Selector = labels.Nothing()
	default:
		g.Selector, err = labels.Parse(*text)
	}
	return err
}

// plainAdvertisement is Advertisement without its methods.
type plainAdvertisement Advertisement

type advertisementJSON struct {
	plainAdvertisement
	ServiceSelector, NodeSelector string
}

// MarshalJSON is for snapshot files.
func (a *Advertisement) MarshalJSON() ([]byte, error) {
	return json.Marshal(advertisementJSON{plainAdvertisement(*a), a.ServiceSelector.String(), a.NodeSelector.String()})
}

// UnmarshalJSON is for snapshot files.
func (a *Advertisement) UnmarshalJSON(data []byte) error {
	var j advertisementJSON
	if err := json.Unmarshal(data, &j); err != nil {
		return err
	}
	services, err := labels.Parse(j.ServiceSelector)
	if err != nil {
		return err
	}
	nodes, err := labels.Parse(j.NodeSelector)
	if err != nil {
		return err
	}
	*a = Advertisement(j.plainAdvertisement)
	a.ServiceSelector, a.NodeSelector = services, nodes
	return nil
}

// plainL2Advertisement is L2Advertisement without its methods.
type plainL2Advertisement L2Advertisement

type l2AdvertisementJSON struct {
	plainL2Advertisement
	ServiceSelector, NodeSelector string
}

// MarshalJSON is for snapshot files.
func (a *L2Advertisement) MarshalJSON() ([]byte, error) {
	return json.Marshal(l2AdvertisementJSON{plainL2Advertisement(*a), a.ServiceSelector.String(), a.NodeSelector.String()})
}

// UnmarshalJSON is for snapshot files.
func (a *L2Advertisement) UnmarshalJSON(data []byte) error {
	var j l2AdvertisementJSON
	if err := json.Unmarshal(data, &j); err != nil {
		return err
	}
	services, err1 := labels.Parse(j.ServiceSelector)
	nodes, err2 := labels.Parse(j.NodeSelector)
	*a = L2Advertisement(j.plainL2Advertisement)
	a.ServiceSelector, a.NodeSelector = services, nodes
	return errors.Join(err1, err2)
}

type preferenceJSON struct {
	Weight   int
	Selector string
}

// MarshalJSON is for snapshot files.
func (p Preference) MarshalJSON() ([]byte, error) {
	return json.Marshal(preferenceJSON{p.Weight, p.Selector.String()})
}

// UnmarshalJSON is for snapshot files.
func (p *Preference) UnmarshalJSON(data []byte) (err error) {
	var j preferenceJSON
	if err = json.Unmarshal(data, &j); err != nil {
		return err
	}
	p.Weight = j.Weight
	p.Selector, err = labels.Parse(j.Selector)
	return err
}
