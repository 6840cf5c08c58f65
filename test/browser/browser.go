// Package browser drives the hub's pages with a real Chromium, as a person does: by what is shown and by
// keys. Every page that it comes to is looked at for what no person should have to meet.
package browser

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	cdplog "github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/adit-dev/adit/test/need"
)

// Browser is one with a profile of its own.
type Browser struct {
	t   testing.TB
	ctx context.Context
	// hosts are those that pages may load from.
	hosts []string

	mu sync.Mutex
	// wrong is what the browser complained of.
	wrong []string
	// expect are parts of complaints that a test provokes.
	expect []string
}

// Open starts a browser that trusts the CA of a file and may talk to the given hosts (host:port).
func Open(t testing.TB, ca string, hosts ...string) *Browser {
	t.Helper()
	path := need.Program(t, "chromium", "certutil")
	home := t.TempDir()
	nss := filepath.Join(home, ".pki", "nssdb")
	if err := os.MkdirAll(nss, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"-N", "--empty-password"}, {"-A", "-t", "C,,", "-n", "adit", "-i", ca}} {
		if out, err := exec.Command(path[1], append([]string{"-d", "sql:" + nss}, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("certutil: %v\n%s", err, out)
		}
	}
	ctx, stop := chromedp.NewExecAllocator(context.Background(), append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]),
		chromedp.ExecPath(path[0]), chromedp.NoSandbox, chromedp.Env("HOME="+home), chromedp.UserDataDir(filepath.Join(home, "profile")),
		// Nothing but what the test asks for.
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-background-networking", true), chromedp.Flag("disable-component-update", true),
		chromedp.Flag("disable-sync", true), chromedp.Flag("disable-gpu", true), chromedp.Flag("dns-prefetch-disable", true))...)
	ctx, end := chromedp.NewContext(ctx)
	t.Cleanup(func() { end(); stop() })
	b := &Browser{t: t, ctx: ctx, hosts: hosts}
	b.ok(chromedp.Listen(ctx, b.hear))
	b.ok(chromedp.Do(ctx, call(cdplog.Enable, cdp.Empty{}), call(network.Enable, network.EnableParams{}), call(runtime.Enable, cdp.Empty{})))
	return b
}

// In hands the browser to a subtest until that ends.
func (b *Browser) In(t *testing.T) {
	whole := b.t
	b.t = t
	t.Cleanup(func() { b.t = whole })
}

// call is a command of the protocol as an action.
func call[P, R any](c cdp.Command[P, R], p P) chromedp.Action[chromedp.Void] {
	return func(ctx context.Context, t *chromedp.Target) (v chromedp.Void, err error) {
		_, err = cdp.Call(ctx, t, c, p)
		return v, err
	}
}

// hear notes what the browser complains of: broken scripts, refused content, requests to strangers.
func (b *Browser) hear(ev any) {
	switch e := ev.(type) {
	case *cdplog.EventEntryAdded:
		if e.Entry.Level == cdplog.EntryLevelError {
			b.complain(fmt.Sprintf("log: %s %s", e.Entry.Text, e.Entry.URL))
		}
	case *runtime.EventExceptionThrown:
		b.complain("exception: " + e.ExceptionDetails.Text)
	case *network.EventRequestWillBeSent:
		u, err := url.Parse(e.Request.URL)
		if err != nil || u.Scheme != "data" && u.Scheme != "about" && !slices.Contains(b.hosts, u.Host) {
			b.complain("a request to " + e.Request.URL)
		}
	}
}

func (b *Browser) complain(text string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !slices.ContainsFunc(b.expect, func(s string) bool { return strings.Contains(text, s) }) {
		b.wrong = append(b.wrong, text)
	}
}

// Expect says that complaints with this text are provoked.
func (b *Browser) Expect(text string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.expect = append(b.expect, text)
}

func (b *Browser) ok(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

// in bounds a step.
func (b *Browser) in(limit time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(b.ctx, limit)
}

// Go goes to an address.
func (b *Browser) Go(address string) {
	b.t.Helper()
	ctx, cancel := b.in(30 * time.Second)
	defer cancel()
	b.ok(chromedp.Do(ctx, chromedp.Navigate(address)))
}

// Type types into the field with this label, in place of what it holds.
func (b *Browser) Type(label, text string) {
	b.t.Helper()
	id := eval[string](b, fmt.Sprintf(`(() => { for (const l of document.querySelectorAll("label")) if (l.firstChild.textContent.trim() === %s) { const f = document.getElementById(l.htmlFor); if (f) { f.focus(); f.select && f.select(); return f.id } } return "" })()`, quote(label)))
	if id == "" {
		b.t.Fatalf("there is no field %q on %s", label, b.Text())
	}
	ctx, cancel := b.in(20 * time.Second)
	defer cancel()
	if text == "" {
		text = "\b"
	}
	b.ok(chromedp.Do(ctx, chromedp.KeyEvent(text)))
}

// Keys presses keys where the focus is. Enter sends a form, so it waits for the page that comes then.
func (b *Browser) Keys(keys string) {
	b.t.Helper()
	press := func() {
		ctx, cancel := b.in(20 * time.Second)
		defer cancel()
		b.ok(chromedp.Do(ctx, chromedp.KeyEvent(keys)))
	}
	if strings.HasSuffix(keys, kb.Enter) {
		b.leave(press)
	} else {
		press()
	}
}

// leave does what leads to another page, and waits for that.
func (b *Browser) leave(do func()) {
	b.t.Helper()
	eval[bool](b, `window.here = true`)
	do()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		ctx, cancel := b.in(20 * time.Second)
		there, err := chromedp.Run(ctx, chromedp.Evaluate[bool](`!window.here && document.readyState === "complete"`))
		cancel()
		if err == nil && there {
			return
		}
		if time.Now().After(deadline) {
			b.t.Fatalf("no other page comes after %s: %s %v", b.Where(), b.Text(), err)
		}
	}
}

// Press clicks the button or the link with this text, and waits for the page that comes then.
func (b *Browser) Press(text string) {
	b.t.Helper()
	mark := fmt.Sprintf(`(() => { document.querySelectorAll("[data-press]").forEach(e => e.removeAttribute("data-press")); for (const e of document.querySelectorAll("button, a")) if (e.textContent.trim() === %s) { e.setAttribute("data-press", ""); return true } return false })()`, quote(text))
	if !eval[bool](b, mark) {
		b.t.Fatalf("there is nothing called %q to press on: %s", text, b.Text())
	}
	b.leave(func() {
		ctx, cancel := b.in(20 * time.Second)
		defer cancel()
		b.ok(chromedp.Do(ctx, chromedp.Click(chromedp.CSS("[data-press]"))))
	})
}

// Sees waits until the page shows a text.
func (b *Browser) Sees(text string) {
	b.t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for {
		got, err := b.text()
		if err == nil && strings.Contains(got, text) {
			return
		}
		if time.Now().After(deadline) {
			b.t.Fatalf("%q is not shown; at %s: %s %v", text, b.Where(), got, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func (b *Browser) text() (string, error) {
	ctx, cancel := b.in(20 * time.Second)
	defer cancel()
	return chromedp.Run(ctx, chromedp.Evaluate[string](`document.body ? document.body.innerText : ""`))
}

// Text is what the page shows.
func (b *Browser) Text() string {
	b.t.Helper()
	s, err := b.text()
	b.ok(err)
	return s
}

// Where is the address shown.
func (b *Browser) Where() string {
	b.t.Helper()
	ctx, cancel := b.in(20 * time.Second)
	defer cancel()
	s, err := chromedp.Run(ctx, chromedp.Location())
	b.ok(err)
	return s
}

// Scripts turns scripts on or off for pages to come.
func (b *Browser) Scripts(on bool) {
	b.t.Helper()
	b.ok(chromedp.Do(b.ctx, call(emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: !on})))
}

// Page looks at the page as it is now, wide and narrow, light and dark: whether everybody can use it. With
// ADIT_TEST_SCREENS set to a folder it leaves pictures there.
func (b *Browser) Page(name string) {
	b.t.Helper()
	for _, look := range []struct {
		name   string
		width  int64
		scheme string
	}{{"wide", 1200, "light"}, {"narrow", 360, "light"}, {"dark", 360, "dark"}} {
		b.ok(chromedp.Do(b.ctx, chromedp.EmulateViewport(look.width, 800),
			call(emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: look.scheme}}})))
		for _, fault := range eval[[]string](b, faults) {
			b.t.Errorf("%s, %s: %s", name, look.name, fault)
		}
		if dir := os.Getenv("ADIT_TEST_SCREENS"); dir != "" {
			png, err := chromedp.Run(b.ctx, chromedp.FullScreenshot(100))
			b.ok(err)
			b.ok(os.WriteFile(filepath.Join(dir, name+"-"+look.name+".png"), png, 0o644))
		}
	}
	b.Fine(name)
}

// Fine fails the test with what the browser complained of since the last call.
func (b *Browser) Fine(name string) {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, w := range b.wrong {
		b.t.Errorf("%s: %s", name, w)
	}
	b.wrong = nil
}

// Wait waits until the page has gone on, for example by itself.
func (b *Browser) Wait(path string) {
	b.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		u, err := url.Parse(b.Where())
		if err == nil && u.Path == path {
			return
		}
		if time.Now().After(deadline) {
			b.t.Fatalf("not at %s but at %s: %s", path, b.Where(), b.Text())
		}
	}
}

// eval runs an expression in the page.
func eval[T any](b *Browser, js string) T {
	b.t.Helper()
	ctx, cancel := b.in(20 * time.Second)
	defer cancel()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](js))
	b.ok(err)
	return v
}

func quote(s string) string {
	b, _ := json.Marshal(s)
	return string(b)
}
