package kubernetes

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestClusterDomain(t *testing.T) {
	pod := "nameserver 10.96.0.10\nsearch demo.svc.corp.local svc.corp.local corp.local example.com\noptions ndots:5\n"
	for _, c := range []struct {
		name, conf, set string
		ptr             []string
		want            string
	}{
		{"K31 cluster domain out of the search list", pod, "", nil, "corp.local"},
		{"K31 cluster domain by DNS where the search list is the node's", "search example.com\n", "", []string{"kubernetes.default.svc.corp.local."}, "corp.local"},
		{"K31 cluster domain as set", pod, "Other.Domain.", nil, "other.domain"},
		{"the last search list counts", "search svc.old.local\nsearch svc.new.local\n", "", nil, "new.local"},
		{"another name of the address", "", "", []string{"api.example.com.", "kubernetes.default.svc.corp.local."}, "corp.local"},
		{"nothing tells", "search example.com\n", "", nil, "cluster.local"},
	} {
		t.Run(c.name, func(t *testing.T) {
			conf := filepath.Join(t.TempDir(), "resolv.conf")
			if err := os.WriteFile(conf, []byte(c.conf), 0o600); err != nil {
				t.Fatal(err)
			}
			p := New(Config{Domain: c.set, ResolvConf: conf, Getenv: func(string) string { return "10.96.0.1" },
				LookupAddr: func(_ context.Context, addr string) ([]string, error) {
					if addr != "10.96.0.1" || c.ptr == nil {
						return nil, errors.New("no such name")
					}
					return c.ptr, nil
				}})
			if got := p.clusterDomain(t.Context()); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

func FuzzSearchedDomain(f *testing.F) {
	f.Add([]byte("search demo.svc.corp.local svc.corp.local corp.local\n"))
	f.Add([]byte("search svc.\nsearch svc.a. svc.b\r\n"))
	f.Add([]byte("options ndots:5\n;search svc.x\n"))
	f.Fuzz(func(t *testing.T, conf []byte) {
		d := searchedDomain(conf)
		if d != strings.ToLower(d) || strings.ContainsAny(d, " \t\r\n") || strings.HasSuffix(d, ".") && d != "" {
			t.Errorf("%q of %q", d, conf)
		}
	})
}
