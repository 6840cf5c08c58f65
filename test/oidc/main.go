// Command oidc is a real OpenID Connect provider for tests, with one web client and the users of a
// file. It is a module of its own so that the product never links it.
package main

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"

	"github.com/zitadel/oidc/v3/example/server/exampleop"
	"github.com/zitadel/oidc/v3/example/server/storage"
)

// usage: oidc CLIENT SECRET REDIRECT-URL USERS-FILE. The issuer is printed once it serves.
func main() {
	if len(os.Args) != 5 {
		fmt.Fprintln(os.Stderr, "usage: oidc CLIENT SECRET REDIRECT-URL USERS-FILE")
		os.Exit(2)
	}
	if err := serve(os.Args[1], os.Args[2], os.Args[3], os.Args[4]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serve(client, secret, redirect, file string) error {
	users, err := storage.StoreFromFile(file)
	if err != nil {
		return err
	}
	storage.RegisterClients(storage.WebClient(client, secret, redirect))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	issuer := fmt.Sprintf("http://127.0.0.1:%d", l.Addr().(*net.TCPAddr).Port)
	router := exampleop.SetupServer(issuer, storage.NewStorage(users), slog.New(slog.NewTextHandler(io.Discard, nil)), false)
	fmt.Println(issuer)
	return http.Serve(l, router) //nolint:gosec // a test's own server
}
