package kubernetes

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"net"
	"os"
	"strings"
	"time"
)

// defaultDomain is what most clusters call themselves.
const defaultDomain = "cluster.local"

// domainTime bounds the question to the DNS.
const domainTime = 5 * time.Second

// clusterDomain is the domain of the cluster's DNS: what was set, or what the Pod's resolver
// searches, or the end of the name that the API server's address has.
func (p *Provider) clusterDomain(ctx context.Context) string {
	if d := strings.Trim(strings.ToLower(p.cfg.Domain), "."); d != "" {
		return d
	}
	conf, _ := os.ReadFile(cmp.Or(p.cfg.ResolvConf, "/etc/resolv.conf")) //nolint:gosec // the system's, or a test's
	if d := searchedDomain(conf); d != "" {
		return d
	}
	lookup := p.cfg.LookupAddr
	if lookup == nil {
		lookup = net.DefaultResolver.LookupAddr
	}
	ctx, cancel := context.WithTimeout(ctx, domainTime)
	defer cancel()
	names, err := lookup(ctx, p.cfg.Getenv("KUBERNETES_SERVICE_HOST"))
	for _, name := range names {
		if d, ok := strings.CutPrefix(strings.ToLower(name), "kubernetes.default.svc."); ok {
			if d = strings.TrimSuffix(d, "."); d != "" {
				return d
			}
		}
	}
	p.cfg.Log.Warn("the domain of the cluster's DNS is not known; cluster.local is taken, --cluster-domain says another", "error", err)
	return defaultDomain
}

// searchedDomain reads the domain out of the search list that Kubernetes gives Pods:
// NAMESPACE.svc.DOMAIN svc.DOMAIN DOMAIN.
func searchedDomain(conf []byte) string {
	domain := ""
	for lines := bufio.NewScanner(bytes.NewReader(conf)); lines.Scan(); {
		words := strings.Fields(strings.ToLower(lines.Text()))
		if len(words) == 0 || words[0] != "search" {
			continue
		}
		domain = "" // the last list counts
		for _, word := range words[1:] {
			if d, ok := strings.CutPrefix(strings.TrimSuffix(word, "."), "svc."); ok && d != "" {
				domain = d
			}
		}
	}
	return domain
}
