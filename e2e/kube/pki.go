package kube

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"
)

// A pki is a certificate authority for the API server and its users.
type pki struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	ca   []byte // the certificate as PEM
}

// A pair is a certificate and its key in PEM.
type pair struct{ cert, key []byte }

func newPKI() (*pki, error) {
	p := &pki{cert: template("fanfare-e2e")}
	p.cert.IsCA, p.cert.BasicConstraintsValid, p.cert.KeyUsage = true, true, x509.KeyUsageCertSign
	var err error
	if p.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, fmt.Errorf("authority: %w", err)
	}
	der, err := x509.CreateCertificate(rand.Reader, p.cert, p.cert, p.key.Public(), p.key)
	if err != nil {
		return nil, fmt.Errorf("authority: %w", err)
	}
	p.ca = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return p, nil
}

func template(name string, groups ...string) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      pkix.Name{CommonName: name, Organization: groups},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(24 * time.Hour),
	}
}

// server returns a server certificate for addrs.
func (p *pki) server(name string, addrs ...netip.Addr) (pair, error) {
	t := template(name)
	t.ExtKeyUsage, t.DNSNames = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, []string{"localhost"}
	for _, a := range addrs {
		t.IPAddresses = append(t.IPAddresses, net.IP(a.AsSlice()))
	}
	return p.sign(t)
}

// user returns a user's certificate: Kubernetes takes the common name for the user and the
// organizations for the groups.
func (p *pki) user(name string, groups ...string) (pair, error) {
	t := template(name, groups...)
	t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	return p.sign(t)
}

func (p *pki) sign(t *x509.Certificate) (pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return pair{}, fmt.Errorf("certificate of %s: %w", t.Subject.CommonName, err)
	}
	cert, err := x509.CreateCertificate(rand.Reader, t, p.cert, key.Public(), p.key)
	if err != nil {
		return pair{}, fmt.Errorf("certificate of %s: %w", t.Subject.CommonName, err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return pair{}, fmt.Errorf("certificate of %s: %w", t.Subject.CommonName, err)
	}
	return pair{
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}),
		pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}),
	}, nil
}

// write writes name.crt and name.key into dir.
func (c pair) write(dir, name string) error {
	return errors.Join(
		os.WriteFile(filepath.Join(dir, name+".crt"), c.cert, 0o644),
		os.WriteFile(filepath.Join(dir, name+".key"), c.key, 0o600),
	)
}
