// Command origin is a service of the tests: HTTP at :8080 and HTTPS at :8443 with a certificate of its
// own. It answers with its name, and at /slow sends a byte a millisecond for ?seconds.
package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log"
	"math/big"
	"net/http"
	"os"
	"strconv"
	"time"
)

func main() {
	name := os.Args[1]
	h := http.NewServeMux()
	h.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, name) })
	h.HandleFunc("/slow", func(w http.ResponseWriter, r *http.Request) {
		n, _ := strconv.Atoi(r.URL.Query().Get("seconds"))
		flush := http.NewResponseController(w)
		for range n * 20 {
			if _, err := w.Write(make([]byte, 50)); err != nil {
				return
			}
			_ = flush.Flush()
			time.Sleep(50 * time.Millisecond)
		}
	})
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		log.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"*.example.dev"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(1, 0, 0)}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		log.Fatal(err)
	}
	secure := &http.Server{Addr: ":8443", Handler: h, ReadHeaderTimeout: time.Minute, TLSConfig: &tls.Config{
		MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
	}}
	go func() { log.Fatal(secure.ListenAndServeTLS("", "")) }()
	plain := &http.Server{Addr: ":8080", Handler: h, ReadHeaderTimeout: time.Minute}
	log.Fatal(plain.ListenAndServe())
}
