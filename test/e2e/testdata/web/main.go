// Command web is an origin for tests in containers: it answers at :8080 with its name.
package main

import (
	"fmt"
	"log"
	"net/http"
	"os"
)

func main() {
	log.Fatal(http.ListenAndServe(":8080", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { //nolint:gosec // for tests
		fmt.Fprint(w, os.Args[1])
	})))
}
