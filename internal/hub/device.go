package hub

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"time"

	hubv1 "github.com/adit-dev/adit/api/hub/v1"
	"github.com/adit-dev/adit/internal/hub/store"
	"github.com/adit-dev/adit/internal/reason"
)

// Signing a tool in (RFC 8628): it shows a code, a person confirms it in a browser, and the tool,
// which polls meanwhile, gets an API key.
const (
	deviceFor      = 10 * time.Minute
	deviceInterval = 5 * time.Second
	// devicesPerAddress and maxDevices cap those that wait.
	devicesPerAddress = 5
	maxDevices        = 1000
	// codeLetters leave out vowels, so that no words come about, and letters that look alike.
	codeLetters = "BCDFGHJKLMNPQRSTVWXZ"
	codeLength  = 8
)

// States of a tool that wants to be signed in.
const (
	devicePending  = "pending"
	deviceApproved = "approved"
	deviceDenied   = "denied"
)

// DeviceAsk is a tool that waits for somebody to confirm it.
type DeviceAsk struct {
	UserCode, Client, Address string
	// Scopes of the key that it asks for; none = all of the person's role.
	Scopes []string
}

// polls remembers when tools asked last, so that none asks too often.
type polls struct {
	mu   sync.Mutex
	last map[string]time.Time
}

// early tells whether a tool asks again too soon (RFC 8628, slow_down).
func (p *polls) early(hash []byte, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.last == nil || len(p.last) > 2*maxDevices {
		p.last = map[string]time.Time{}
	}
	last, seen := p.last[string(hash)]
	p.last[string(hash)] = now
	return seen && now.Sub(last) < deviceInterval-time.Second
}

// userCode is what a person reads from the tool, as BCDF-GHJK.
func userCode() string {
	raw := make([]byte, codeLength)
	for i := range raw {
		for {
			_, _ = rand.Read(raw[i : i+1]) // never fails
			if raw[i] < 240 {              // a multiple of 20: every letter is as likely
				break
			}
		}
		raw[i] = codeLetters[int(raw[i])%len(codeLetters)]
	}
	return string(raw[:4]) + "-" + string(raw[4:])
}

// plainCode is a user code as it is stored, however it was typed.
func plainCode(s string) string {
	s = strings.Map(func(r rune) rune {
		if strings.ContainsRune(codeLetters, r) {
			return r
		}
		return -1
	}, strings.ToUpper(s))
	if len(s) != codeLength {
		return ""
	}
	return s[:4] + "-" + s[4:]
}

// StartDevice begins the sign-in of a tool.
func (h *Hub) StartDevice(ctx context.Context, r *hubv1.StartDeviceRequest) (*hubv1.StartDeviceResponse, error) {
	client := strings.TrimSpace(r.GetClient())
	if client == "" || len(client) > 63 {
		return nil, invalid("client", client, "give 1 to 63 bytes that tell the person which tool it is", "is no name of a tool")
	}
	scopes, err := checkScopes("scopes", r.GetScopes())
	if err != nil {
		return nil, err
	}
	from := ActorFrom(ctx).From.String()
	secret, hash := newSecret()
	d := &store.DeviceRequest{Hash: hash, UserCode: userCode(), Client: client, Address: from, Scopes: strings.Join(scopes, " "), State: devicePending}
	err = h.store.Write(ctx, func(tx *store.Tx) error {
		mine, all, err := tx.DeviceRequests(from)
		if err != nil {
			return err
		}
		if mine >= devicesPerAddress || all >= maxDevices {
			return reason.New(reason.RateLimited, reason.HopHub, "too many tools wait to be signed in; confirm one, or try again in %s", deviceFor)
		}
		d.CreatedAt, d.ExpiresAt = tx.Now.UnixMilli(), tx.Now.Add(deviceFor).UnixMilli()
		return tx.AddDeviceRequest(d)
	})
	if err != nil {
		return nil, err
	}
	return &hubv1.StartDeviceResponse{
		DeviceCode: secret, UserCode: d.UserCode, VerificationUrl: h.cfg.URL + PathDevice + "?code=" + d.UserCode,
		ExpiresAt: stamp(d.ExpiresAt), IntervalSeconds: uint32(deviceInterval / time.Second),
	}, nil
}

// PollDevice tells a tool what became of it. Its key is made when it asks for the first time after
// the approval, and is handed out once.
func (h *Hub) PollDevice(ctx context.Context, code string) (*hubv1.PollDeviceResponse, error) {
	hash := hashOf(code)
	if h.polls.early(hash, h.cfg.Now()) {
		return nil, reason.New(reason.RateLimited, reason.HopHub, "asked too often; wait %s between two questions", deviceInterval)
	}
	out := &hubv1.PollDeviceResponse{State: "expired"}
	a := ActorFrom(ctx)
	a.What = "" // only what makes a key is audited
	err := h.write(ctx, func(tx *store.Tx) error {
		d, err := tx.DeviceRequest(hash)
		if errors.Is(err, store.ErrNotFound) || err == nil && expired(d.ExpiresAt, tx.Now) {
			return nil
		}
		if err != nil {
			return err
		}
		if out.State = d.State; d.State == devicePending {
			return nil
		}
		if err := tx.DropDeviceRequest(hash); err != nil || d.State == deviceDenied {
			return err
		}
		token, k, err := h.deviceKey(tx, d)
		if err != nil {
			return err
		}
		a.Name, a.What, a.Subject = k.UserName, "sign_in_tool", "key "+k.Name
		out.State, out.Token, out.Key = "done", token, keyView(k)
		return tx.AddKey(k)
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// deviceKey makes the key of a tool that was approved. The person may have changed since.
func (h *Hub) deviceKey(tx *store.Tx, d *store.DeviceRequest) (string, *store.Key, error) {
	u, err := tx.User(d.UserID)
	if err != nil {
		return "", nil, err
	}
	if err := mayHold(u, strings.Fields(d.Scopes)); err != nil {
		return "", nil, err
	}
	token, k, err := h.bearer()
	if err != nil {
		return "", nil, err
	}
	k.UserID, k.UserName, k.Name, k.Scopes = u.ID, u.Name, d.Client, d.Scopes
	k.SignedInAt, k.CreatedAt, k.ExpiresAt = d.SignedInAt, tx.Now.UnixMilli(), tx.Now.Add(keyFor).UnixMilli()
	return token, k, nil
}

// errNoDevice is the same for codes that never were.
func errNoDevice(code string) error {
	return &Problem{Code: reason.NotFound, Field: "code", Value: code, Text: "no tool waits with this code", Remedy: fmt.Sprintf("compare it with what the tool shows; codes end after %s", deviceFor)}
}

// DeviceRequest returns the tool that shows a code. Wrong codes count as guesses of the address.
func (h *Hub) DeviceRequest(ctx context.Context, code string, from netip.Addr) (*DeviceAsk, error) {
	var d *store.DeviceRequest
	b := budget{address: from}
	err := h.store.Write(ctx, func(tx *store.Tx) error {
		d = nil
		locked, err := b.take(tx)
		if err != nil {
			return err
		}
		if err := h.tellLockOut(tx, locked, ""); err != nil {
			return err
		}
		found, err := tx.DeviceRequestOf(plainCode(code))
		if errors.Is(err, store.ErrNotFound) {
			return nil
		}
		if err != nil || found.State != devicePending || expired(found.ExpiresAt, tx.Now) {
			return err
		}
		d = found
		return b.give(tx)
	})
	if err != nil {
		return nil, err
	}
	if d == nil {
		return nil, errNoDevice(code)
	}
	return &DeviceAsk{UserCode: d.UserCode, Client: d.Client, Address: d.Address, Scopes: strings.Fields(d.Scopes)}, nil
}

// AnswerDevice lets a tool have a key of a, who is signed in, or not.
func (h *Hub) AnswerDevice(ctx context.Context, a *Actor, code string, approve bool) error {
	a.What, a.Subject = "answer_tool", "tool "+plainCode(code)
	return h.write(ctx, func(tx *store.Tx) error {
		d, err := tx.DeviceRequestOf(plainCode(code))
		if errors.Is(err, store.ErrNotFound) || err == nil && (d.State != devicePending || expired(d.ExpiresAt, tx.Now)) {
			return errNoDevice(code)
		}
		if err != nil {
			return err
		}
		if d.State = deviceDenied; approve {
			u, err := tx.User(a.UserID)
			if err != nil {
				return err
			}
			if err := mayHold(u, strings.Fields(d.Scopes)); err != nil {
				return err
			}
			d.State, d.UserID, d.SignedInAt = deviceApproved, u.ID, a.SignedIn.UnixMilli()
		}
		return tx.PutDeviceRequest(d)
	})
}
