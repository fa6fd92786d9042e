// Package hwaddr has the hardware address that all packages about links use.
package hwaddr
