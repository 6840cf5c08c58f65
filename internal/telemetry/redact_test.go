package telemetry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"
)

func TestRedact(t *testing.T) {
	const s = "S3cretValue0123456789"
	for _, line := range []string{
		"started with adit_invite_" + s, "token=adit_agent_" + s, `"api_key":"adit_key_` + s + `"`, "adit_admin_" + s,
		"Authorization: Bearer " + s, "authorization: Basic " + s + "==", `map[Authorization:[Bearer ` + s + `]]`, "Proxy-Authorization: Digest username=x, response=" + s,
		"Cookie: sid=" + s + "; other=" + s, "Set-Cookie: sid=" + s + "; Path=/", `{"cookie":"sid=` + s + `"}`, "X-Api-Key: " + s,
		`{"password":"` + s + `"}`, `{"client_secret": "` + s + `"}`, `body="{\"password\":\"` + s + `\"}"`, `{"user":"x","Token":"` + s + `"}`, `{'passwd': '` + s + `'}`,
		"GET /login?password=" + s + "&x=1", "/cb?code=" + s, "?access_token=" + s, "api-key=" + s, `password="` + s + ` with a space"`, "url=https://a/?sig=" + s,
		"http://admin:" + s + "@10.0.0.1/", "postgres://u:" + s + "@db:5432/x", "redis://:" + s + "@r:1", "https://u:p@" + s + "@host/",
		"jwt eyJhbGciOiJFZERTQSJ9.eyJ" + s + "." + s,
		"-----BEGIN PRIVATE KEY-----\n" + s + "\n-----END PRIVATE KEY-----", "-----BEGIN EC PRIVATE KEY----- " + s,
		"ticket=" + s, "session_id=" + s,
	} {
		t.Run(line, func(t *testing.T) {
			if got := Redact(line); strings.Contains(got, s) || !strings.Contains(got, hidden) {
				t.Errorf("%q", got)
			}
		})
	}
	for _, line := range []string{
		"", "hello", "service declared url=https://app.example.com origin=http://127.0.0.1:3000", "GET /keys?page=2 200 12ms",
		`reason=origin_tls detail="the certificate of https://10.0.0.5:443 is not valid"`, "monkey=business turkey=7", "user@example.com wrote",
		"token_id", "http://[::1]:80/a@b", `msg="the token was refused"`,
	} {
		if got := Redact(line); got != line {
			t.Errorf("%q became %q", line, got)
		}
	}
}

// FuzzRedact puts a secret into whatever text in all the ways that are known, and looks for it.
func FuzzRedact(f *testing.F) {
	f.Add("GET /x", " HTTP/1.1")
	f.Add(`{"a":"`, `"}`)
	f.Add("Cookie: a=b", "\n")
	f.Add("\\", "\\\"")
	const s = "S3cretValue0123456789"
	f.Fuzz(func(t *testing.T, before, after string) {
		if strings.Contains(before+after, "S3cret") || strings.Contains(before, hidden) {
			return
		}
		for _, form := range []string{
			"adit_invite_%s", " Authorization: Bearer %s\n", "\nCookie: sid=%s\n", `{"password":"%s"}`, "?password=%s&", " https://u:%s@h/",
		} {
			line := before + " " + fmt.Sprintf(form, s) + " " + after
			got := Redact(line)
			if strings.Contains(got, s) {
				t.Errorf("%q became %q", line, got)
			}
			if utf8.ValidString(line) && !utf8.ValidString(got) {
				t.Errorf("%q became text that is not valid: %q", line, got)
			}
		}
	})
}

func TestRing(t *testing.T) {
	ring := NewRing()
	var out bytes.Buffer
	log := ring.Tee(slog.New(slog.NewTextHandler(&out, nil)))
	log.With("a", 1).WithGroup("g").Info("first", "password", "hunter2secret", "err", errors.New("Authorization: Bearer abcdefghijk"))
	log.Debug("not enabled")
	lines, at, lost := ring.After(0, 10)
	if len(lines) != 1 || at != 1 || lost || lines[0].Level != "info" {
		t.Fatalf("%v at %d, lost %v", lines, at, lost)
	}
	if want := "first a=1 g.password=" + hidden + " g.err="; !strings.HasPrefix(lines[0].Text, want) || strings.Contains(lines[0].Text, "abcdefghijk") {
		t.Errorf("%q, want %q first", lines[0].Text, want)
	}
	if !strings.Contains(out.String(), "hunter2secret") {
		t.Error("the log itself does not get all")
	}
	for i := range 3 * ringLines {
		log.Info("line", "n", i)
	}
	t.Run("the newest", func(t *testing.T) {
		lines, at, lost := ring.After(0, 2)
		if len(lines) != 2 || at != 3*ringLines+1 || !lost || lines[1].Text != fmt.Sprintf("line n=%d", 3*ringLines-1) {
			t.Errorf("%v at %d, lost %v", lines, at, lost)
		}
	})
	t.Run("behind a position", func(t *testing.T) {
		lines, at, lost := ring.After(3*ringLines-1, 500)
		if len(lines) != 2 || at != 3*ringLines+1 || lost {
			t.Errorf("%v at %d, lost %v", lines, at, lost)
		}
	})
	t.Run("behind what is gone", func(t *testing.T) {
		lines, at, lost := ring.After(5, 500)
		if len(lines) != 500 || at != 2*ringLines+1+500 || !lost || lines[0].Text != fmt.Sprintf("line n=%d", 2*ringLines) {
			t.Errorf("%d lines from %v at %d, lost %v", len(lines), lines[0], at, lost)
		}
	})
	t.Run("of another process", func(t *testing.T) {
		if _, _, lost := ring.After(1_000_000, 500); !lost {
			t.Error("nothing is lost")
		}
	})
	t.Run("long lines", func(t *testing.T) {
		log.Info(strings.Repeat("é", 3000))
		lines, _, _ := ring.After(0, 1)
		if n := utf8.RuneCountInString(lines[0].Text); n != lineRunes {
			t.Errorf("%d characters", n)
		}
	})
	t.Run("waiting", func(t *testing.T) {
		_, at, _ := ring.After(0, 1)
		var wg sync.WaitGroup
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		wg.Go(func() { ring.Wait(ctx, at) })
		log.Info("now")
		wg.Wait()
		if ctx.Err() != nil {
			t.Error("the line was not seen")
		}
	})
}
