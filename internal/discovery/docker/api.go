package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"
)

// Two requests of Docker's API are all that discovery needs, and both are older than any daemon
// in use: so there is no client library here, whose size a small agent would carry.

const (
	// answerTime bounds one list; maxAnswer what is read of it, in bytes.
	answerTime = 10 * time.Second
	maxAnswer  = 32 << 20
)

// container is what a list says of one that runs.
type container struct {
	ID         string `json:"Id"`
	Names      []string
	Labels     map[string]string
	State      string
	Status     string
	Ports      []port
	HostConfig struct{ NetworkMode string }
	// NetworkSettings has the networks that it is part of, by name.
	NetworkSettings struct{ Networks map[string]network }
}

// port is one of a container. IP and PublicPort are those of the host; 0 = not published.
type port struct {
	IP          string
	PrivatePort uint16
	PublicPort  uint16
	Type        string
}

type network struct {
	IPAddress         string
	GlobalIPv6Address string
}

// daemon is Docker at its socket.
type daemon struct {
	socket string
	http   *http.Client
}

func newDaemon(socket string) *daemon {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socket)
	}
	return &daemon{socket, &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}}
}

// get asks for a path; the caller closes the body.
func (d *daemon) get(ctx context.Context, path string, query url.Values) (*http.Response, error) {
	u := url.URL{Scheme: "http", Host: "docker", Path: path, RawQuery: query.Encode()}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	resp, err := d.http.Do(r)
	if err != nil {
		var inner *url.Error
		if errors.As(err, &inner) {
			err = inner.Err
		}
		return nil, fmt.Errorf("Docker does not answer at %s: %w", d.socket, err) //nolint:staticcheck // a name
	}
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 512))
		_ = resp.Body.Close()
		return nil, fmt.Errorf("Docker answered GET %s with %s: %q", path, resp.Status, text) //nolint:staticcheck // a name
	}
	return resp, nil
}

// containers are those that run.
func (d *daemon) containers(ctx context.Context) ([]container, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	resp, err := d.get(ctx, "/containers/json", nil)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	return parseContainers(io.LimitReader(resp.Body, maxAnswer))
}

func parseContainers(r io.Reader) ([]container, error) {
	var list []container
	if err := json.NewDecoder(r).Decode(&list); err != nil {
		return nil, fmt.Errorf("Docker's list of containers is not understood: %w", err) //nolint:staticcheck // a name
	}
	return list, nil
}

// eventFilter leaves out what says nothing of where a service is: health checks run programs in
// containers all the time, and each of them is an event.
const eventFilter = `{"type":["container","network"],"event":["start","die","destroy","rename","pause","unpause","health_status","connect","disconnect"]}`

// event is something that happened to a container, or to a network of one.
type event struct {
	Type  string
	Actor struct {
		ID         string
		Attributes map[string]string
	}
}

// container is the id of the one that it happened to.
func (e *event) container() string {
	if e.Type == "network" {
		return e.Actor.Attributes["container"]
	}
	return e.Actor.ID
}

// events tells the ids of containers that something happened to, an empty one at first, until
// the stream or ctx ends.
func (d *daemon) events(ctx context.Context, happened chan<- string) error {
	resp, err := d.get(ctx, "/events", url.Values{"filters": {eventFilter}})
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	stream := json.NewDecoder(resp.Body)
	for id := ""; ; {
		select {
		case happened <- id:
		case <-ctx.Done():
			return ctx.Err()
		}
		var e event
		if err := stream.Decode(&e); err != nil {
			return fmt.Errorf("Docker ended the stream of its events: %w", err) //nolint:staticcheck // a name
		}
		id = e.container()
	}
}
