// Package split takes apart, in every combination, what layer 2 relies on: nodes that do
// not hear one another, an API server that is away, for all or for one, and speakers that
// are frozen and go on; and watches who claims an address meanwhile. It is a laboratory
// with a real control plane, and a package of its own since it takes a minute and more.
package split
