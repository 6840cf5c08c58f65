package hub

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"
	"google.golang.org/protobuf/proto"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/internal/hub/store"
	"github.com/adit-dev/adit/internal/reason"
)

const (
	// providerTimeout bounds one request to a sign-in provider.
	providerTimeout = 10 * time.Second
	// offerPatience is how long the sign-in page waits for providers that were not asked lately.
	offerPatience = 3 * time.Second
	// discoveryLife and discoveryRetry are how long what a provider says of itself, or its silence,
	// is believed.
	discoveryLife  = time.Hour
	discoveryRetry = 30 * time.Second
	maxProviders   = 20
	// settingsProvider is the name of the provider that the server's flags set.
	settingsProvider = "oidc"
	// methodPassword is a way to sign in that is no provider.
	methodPassword = "password"
	defaultGroups  = "groups"
)

var (
	providerName  = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$`)
	defaultScopes = []string{oidc.ScopeOpenID, "email", "profile"}
)

// OIDCSettings is the provider that the server's flags set; an empty issuer is none.
type OIDCSettings struct {
	Issuer, ClientID, ClientSecret, GroupsClaim, AdminGroup string
}

// ProviderChoice is a provider that people can sign in with now.
type ProviderChoice struct{ Name, DisplayName string }

// relyingParty is what this hub needs to sign people in with one provider.
type relyingParty struct {
	spec     *hubv1.Provider
	secret   string
	provider *oidc.Provider
}

// discovered is what a provider said of itself, or why it did not.
type discovered struct {
	issuer   string
	provider *oidc.Provider
	err      error
	at       time.Time
}

// discoveries remembers what providers said.
type discoveries struct {
	mu  sync.Mutex
	all map[string]discovered
}

// secretPurpose is what a provider's client secret is sealed for.
func secretPurpose(name string) string { return "client secret of provider " + name }

// redirectURL is what is registered at the provider.
func (h *Hub) redirectURL(name string) string { return h.cfg.URL + "/auth/oidc/" + name + "/callback" }

// providerOf reads a row.
func (h *Hub) providerOf(r *store.Provider) (*hubv1.Provider, string, error) {
	p := &hubv1.Provider{}
	if err := proto.Unmarshal(r.Spec, p); err != nil {
		return nil, "", fmt.Errorf("provider %s: %w", r.Name, err)
	}
	secret, err := h.sealer.Open(secretPurpose(r.Name), r.Secret)
	if err != nil {
		return nil, "", fmt.Errorf("client secret of provider %s: %w", r.Name, err)
	}
	p.RedirectUrl = h.redirectURL(p.GetName())
	return p, string(secret), nil
}

// fromSettings is the provider that the flags set; nil without one.
func (h *Hub) fromSettings() *relyingParty {
	c := h.cfg.OIDC
	if c.Issuer == "" {
		return nil
	}
	p := &hubv1.Provider{Name: settingsProvider, Issuer: c.Issuer, ClientId: c.ClientID, GroupsClaim: c.GroupsClaim, AdminGroup: c.AdminGroup, FromSettings: true}
	completeProvider(p)
	p.RedirectUrl = h.redirectURL(p.GetName())
	return &relyingParty{spec: p, secret: c.ClientSecret}
}

func completeProvider(p *hubv1.Provider) {
	if p.GroupsClaim == "" {
		p.GroupsClaim = defaultGroups
	}
	if p.DisplayName == "" {
		p.DisplayName = p.GetName()
		if u, err := url.Parse(p.GetIssuer()); err == nil && p.GetName() == settingsProvider {
			p.DisplayName = u.Hostname()
		}
	}
	if len(p.Scopes) == 0 {
		p.Scopes = slices.Clone(defaultScopes)
	}
}

// relyingParties are all providers, that of the flags first.
func (h *Hub) relyingParties(ctx context.Context) ([]*relyingParty, error) {
	var rows []*store.Provider
	if err := h.store.Read(ctx, func(tx *store.Tx) (err error) { rows, err = tx.Providers(); return err }); err != nil {
		return nil, err
	}
	var out []*relyingParty
	if p := h.fromSettings(); p != nil {
		out = append(out, p)
	}
	for _, r := range rows {
		spec, secret, err := h.providerOf(r)
		if err != nil {
			return nil, err
		}
		if h.cfg.OIDC.Issuer == "" || spec.GetName() != settingsProvider {
			out = append(out, &relyingParty{spec: spec, secret: secret})
		}
	}
	return out, nil
}

// relyingParty returns a provider by name, ready to sign people in.
func (h *Hub) relyingParty(ctx context.Context, name string) (*relyingParty, error) {
	all, err := h.relyingParties(ctx)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(all, func(p *relyingParty) bool { return p.spec.GetName() == name })
	if i < 0 {
		return nil, notFound("sign-in provider", name, "choose one of the sign-in page")
	}
	all[i].provider, err = h.discover(ctx, name, all[i].spec.GetIssuer())
	return all[i], err
}

// ListProviders returns all providers without their secrets.
func (h *Hub) ListProviders(ctx context.Context) ([]*hubv1.Provider, error) {
	all, err := h.relyingParties(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]*hubv1.Provider, len(all))
	for i, p := range all {
		out[i] = p.spec
	}
	return out, nil
}

// SignInProviders are those that can succeed now: who does not answer is not offered.
func (h *Hub) SignInProviders(ctx context.Context) []ProviderChoice {
	all, err := h.relyingParties(ctx)
	if err != nil {
		h.log.Error("sign-in providers not read", "error", err)
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, offerPatience)
	defer cancel()
	ok := make([]bool, len(all))
	var wg sync.WaitGroup
	for i, p := range all {
		wg.Go(func() {
			_, err := h.discover(ctx, p.spec.GetName(), p.spec.GetIssuer())
			ok[i] = err == nil
		})
	}
	wg.Wait()
	var out []ProviderChoice
	for i, p := range all {
		if ok[i] {
			out = append(out, ProviderChoice{p.spec.GetName(), p.spec.GetDisplayName()})
		}
	}
	return out
}

// discover reads what an issuer says of itself (OpenID Connect Discovery 1.0), or remembers it.
func (h *Hub) discover(ctx context.Context, name, issuer string) (*oidc.Provider, error) {
	d := &h.discoveries
	now := h.cfg.Now()
	d.mu.Lock()
	known, ok := d.all[name]
	d.mu.Unlock()
	life := discoveryLife
	if known.err != nil {
		life = discoveryRetry
	}
	if ok && known.issuer == issuer && now.Sub(known.at) < life {
		return known.provider, known.err
	}
	p, err := readIssuer(ctx, issuer)
	if err != nil && ctx.Err() != nil && ok && known.provider != nil && known.issuer == issuer {
		return known.provider, nil // slow now, well before
	}
	if err != nil {
		h.log.Warn("sign-in provider does not answer", "provider", name, "issuer", issuer, "error", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.all == nil {
		d.all = map[string]discovered{}
	}
	d.all[name] = discovered{issuer: issuer, provider: p, err: err, at: now}
	return p, err
}

// forgetProvider makes the next use read the issuer again.
func (h *Hub) forgetProvider(name string) {
	h.discoveries.mu.Lock()
	defer h.discoveries.mu.Unlock()
	delete(h.discoveries.all, name)
}

// readIssuer reads the discovery document. The provider keeps the client, which has its own limit
// of time.
func readIssuer(ctx context.Context, issuer string) (*oidc.Provider, error) {
	type result struct {
		p   *oidc.Provider
		err error
	}
	done := make(chan result, 1)
	go func() {
		p, err := oidc.NewProvider(oidc.ClientContext(context.WithoutCancel(ctx), providerClient(issuer)), issuer)
		done <- result{p, err}
	}()
	select {
	case r := <-done:
		return r.p, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// providerClient talks to providers: nothing link-local, and in clear text only to this host.
func providerClient(issuer string) *http.Client {
	return &http.Client{Timeout: providerTimeout, Transport: &http.Transport{
		Proxy: http.ProxyFromEnvironment, DialContext: noticeDialer(strings.HasPrefix(issuer, "http:")).DialContext,
		TLSHandshakeTimeout: providerTimeout, MaxIdleConns: 4, IdleConnTimeout: 30 * time.Second,
	}}
}

// SetProvider makes or replaces a provider, once its issuer has answered. A secret that is left
// empty stays, as long as the issuer is the same.
func (h *Hub) SetProvider(ctx context.Context, p *hubv1.Provider) (*hubv1.Provider, error) {
	if err := h.checkProvider(p); err != nil {
		return nil, err
	}
	spec := proto.CloneOf(p)
	spec.ClientSecret, spec.RedirectUrl, spec.FromSettings = "", "", false
	completeProvider(spec)
	dctx, cancel := context.WithTimeout(ctx, providerTimeout)
	defer cancel()
	if _, err := readIssuer(dctx, spec.GetIssuer()); err != nil {
		return nil, invalid("provider.issuer", spec.GetIssuer(), "check the address in a browser with /.well-known/openid-configuration behind it",
			"does not answer as an OpenID Connect issuer: %v", err)
	}
	raw, err := proto.Marshal(spec)
	if err != nil {
		return nil, err
	}
	secret := p.GetClientSecret()
	row := &store.Provider{Name: spec.GetName(), Spec: raw}
	err = h.write(ctx, func(tx *store.Tx) error {
		old, err := tx.Provider(row.Name)
		switch {
		case errors.Is(err, store.ErrNotFound):
			all, err := tx.Providers()
			if err != nil {
				return err
			}
			if len(all) >= maxProviders {
				return invalid("provider.name", row.Name, "delete one that is not needed", "is one more than the %d providers a hub may have", maxProviders)
			}
		case err != nil:
			return err
		default:
			before, kept, err := h.providerOf(old)
			if err != nil {
				return err
			}
			if secret == "" && before.GetIssuer() == spec.GetIssuer() && before.GetClientId() == spec.GetClientId() {
				secret = kept
			}
		}
		if secret == "" {
			return invalid("provider.client_secret", "", "give the secret that the provider showed for this client", "is empty")
		}
		if row.Secret, err = h.sealer.Seal(secretPurpose(row.Name), []byte(secret)); err != nil {
			return err
		}
		return tx.PutProvider(row)
	})
	if err != nil {
		return nil, err
	}
	h.forgetProvider(row.Name)
	spec.RedirectUrl = h.redirectURL(row.Name)
	return spec, nil
}

func (h *Hub) checkProvider(p *hubv1.Provider) error {
	if !providerName.MatchString(p.GetName()) {
		return invalid("provider.name", p.GetName(), "use 1 to 32 of a-z, 0-9 and \"-\"", "is no name")
	}
	if p.GetName() == methodPassword || h.cfg.OIDC.Issuer != "" && p.GetName() == settingsProvider {
		return invalid("provider.name", p.GetName(), "choose another name", "is taken by the server itself")
	}
	u, err := url.Parse(p.GetIssuer())
	switch {
	case err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return invalid("provider.issuer", p.GetIssuer(), "give https://HOST[/PATH]", "is no issuer")
	case u.Scheme != "https" && (u.Scheme != "http" || !isLoopbackHost(u.Hostname())):
		return invalid("provider.issuer", p.GetIssuer(), "use https", "would send secrets in clear text")
	case p.GetClientId() == "":
		return invalid("provider.client_id", "", "register this hub at the provider, with the redirect address "+h.redirectURL(p.GetName()), "is empty")
	case p.GetAdminGroup() != "" && strings.TrimSpace(p.GetAdminGroup()) != p.GetAdminGroup():
		return invalid("provider.admin_group", p.GetAdminGroup(), "write the group as the provider does", "has spaces at its ends")
	case len(p.GetScopes()) > 0 && !slices.Contains(p.GetScopes(), oidc.ScopeOpenID):
		return invalid("provider.scopes", strings.Join(p.GetScopes(), " "), "add openid", "lacks openid")
	}
	return nil
}

func isLoopbackHost(host string) bool {
	return host == "localhost" || host == "127.0.0.1" || host == "::1"
}

// DeleteProvider removes a provider. Who signed in with it keeps the account.
func (h *Hub) DeleteProvider(ctx context.Context, name string) error {
	if h.cfg.OIDC.Issuer != "" && name == settingsProvider {
		return invalid("name", name, "start the server without --oidc-issuer", "is set by the server's flags")
	}
	err := h.write(ctx, func(tx *store.Tx) error {
		there, err := tx.DropProvider(name)
		if err == nil && !there {
			return notFound("sign-in provider", name, "list them with the API, ProviderService/ListProviders")
		}
		return err
	})
	h.forgetProvider(name)
	return err
}

// config is what OAuth needs of a provider.
func (h *Hub) oauth(p *relyingParty) *oauth2.Config {
	return &oauth2.Config{
		ClientID: p.spec.GetClientId(), ClientSecret: p.secret, Endpoint: p.provider.Endpoint(),
		RedirectURL: h.redirectURL(p.spec.GetName()), Scopes: p.spec.GetScopes(),
	}
}

// providerFailed is an error of a provider as people see it.
func providerFailed(p *relyingParty, format string, args ...any) error {
	return reason.New(reason.Unauthenticated, reason.HopHub, "%s: %s", p.spec.GetDisplayName(), fmt.Sprintf(format, args...))
}
