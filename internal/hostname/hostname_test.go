package hostname

import (
	"strings"
	"testing"
)

func TestNormalize(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"a.example.com", "a.example.com"},
		{"EXAMPLE.com.", "example.com"},
		{"Bücher.example", "xn--bcher-kva.example"},
		{"BÜCHER.example.", "xn--bcher-kva.example"},
		{"xn--bcher-kva.example", "xn--bcher-kva.example"},
		{"a。example", "a.example"},
		{"faß.de", "xn--fa-hia.de"},
		{"localhost", "localhost"},
		{"a_b.example", "a_b.example"},
		{"1.example", "1.example"},
		{"", ""}, {".", ""}, {"a..b", ""}, {".a", ""}, {"a b.c", ""}, {"a@b.c", ""}, {"-a.b", ""}, {"a-.b", ""},
		{"10.0.0.1", ""}, {"::1", ""}, {"[::1]", ""}, {"a.b:443", ""}, {"a/b.c", ""}, {"*.a.b", ""}, {"a.b..", ""}, {"a\x00.b", ""},
		{strings.Repeat("a", 64) + ".b", ""},
		{strings.Repeat("a.", 127) + "b", ""},
	} {
		got, err := Normalize(c.in)
		if (err != nil) != (c.want == "") || got != c.want {
			t.Errorf("Normalize(%q) = %q, %v, want %q", c.in, got, err, c.want)
		}
	}
}

func TestFromHost(t *testing.T) {
	for in, want := range map[string]string{
		"a.example.com:443": "a.example.com", "A.example.com.:8443": "a.example.com", "a.b": "a.b", "a.b:": "a.b",
		"a.b:x": "", "[::1]:443": "", "a.b:1:2": "", "127.0.0.1:80": "", ":443": "",
	} {
		if got, err := FromHost(in); got != want || (err != nil) != (want == "") {
			t.Errorf("FromHost(%q) = %q, %v, want %q", in, got, err, want)
		}
	}
}

func TestMatch(t *testing.T) {
	t.Run("R02 a wildcard matches on a label boundary only", func(t *testing.T) {
		for _, c := range []struct {
			pattern, host string
			want          bool
		}{
			{"*.example.com", "fooexample.com", false},
			{"*.example.com", "notexample.com", false},
			{"*.example.com", "example.com", false},
			{"*.example.com", "a.b.example.com", false},
			{"*.example.com", "A.EXAMPLE.com.", true},
			{"*.example.com", "a.example.com:443", true},
			{"*.example.com", "_a.example.com", false},
			{"**.example.com", "a.b.example.com", true},
			{"**.example.com", "a.example.com", true},
			{"**.example.com", "example.com", false},
			{"**.example.com", "aexample.com", false},
			{"**.example.com", "_acme.a.example.com", false},
			{"**.example.com", "a._tcp.example.com", false},
			{"EXAMPLE.com.", "example.com", true},
			{"example.com", "EXAMPLE.com.", true},
			{"example.com", "a.example.com", false},
			{"*.bücher.example", "a.xn--bcher-kva.example", true},
		} {
			p, err := Parse(c.pattern)
			if err != nil {
				t.Fatal(err)
			}
			h, err := FromHost(c.host)
			if err != nil {
				t.Fatal(err)
			}
			if got := p.Match(h); got != c.want {
				t.Errorf("%s matches %s: %v, want %v", c.pattern, c.host, got, c.want)
			}
		}
	})
}

func TestParse(t *testing.T) {
	for in, want := range map[string]string{
		"*.Example.com.": "*.example.com", "**.x": "**.x", "a.b": "a.b", "*.localhost": "*.localhost",
		"*": "", "*.": "", "**": "", "a.*.b": "", "***.a": "", "a*.b": "", "*a.b": "", "*.*.b": "", "intranet": "", "_x.b": "",
		"*._tcp.b": "", "10.0.0.1": "", "*.10.0.0.1": "", "": "",
	} {
		p, err := Parse(in)
		if (err != nil) != (want == "") || err == nil && p.String() != want {
			t.Errorf("Parse(%q) = %q, %v, want %q", in, p, err, want)
		}
	}
	if Valid("A.b") || !Valid("*.a.b") {
		t.Error("Valid: only the one spelling is valid")
	}
}

func TestOverlapsAndCovers(t *testing.T) {
	for _, c := range []struct {
		p, q                      string
		overlap, pCoversQ, qCover bool
	}{
		{"a.x.y", "a.x.y", true, true, true},
		{"a.x.y", "b.x.y", false, false, false},
		{"*.x.y", "a.x.y", true, true, false},
		{"*.x.y", "x.y", false, false, false},
		{"*.x.y", "a.b.x.y", false, false, false},
		{"*.x.y", "*.x.y", true, true, true},
		{"*.x.y", "*.a.x.y", false, false, false},
		{"**.x.y", "*.x.y", true, true, false},
		{"**.x.y", "*.a.x.y", true, true, false},
		{"**.x.y", "**.a.x.y", true, true, false},
		{"**.x.y", "a.b.x.y", true, true, false},
		{"**.a.x.y", "*.x.y", false, false, false},
		{"**.a.x.y", "a.x.y", false, false, false},
		{"*.x.y", "*.xx.y", false, false, false},
		{"**.x.y", "a.xx.y", false, false, false},
	} {
		p, err := Parse(c.p)
		if err != nil {
			t.Fatal(err)
		}
		q, err := Parse(c.q)
		if err != nil {
			t.Fatal(err)
		}
		if p.Overlaps(q) != c.overlap || q.Overlaps(p) != c.overlap {
			t.Errorf("%s overlaps %s: want %v both ways", p, q, c.overlap)
		}
		if p.Covers(q) != c.pCoversQ || q.Covers(p) != c.qCover {
			t.Errorf("%s covers %s: %v and back %v, want %v and %v", p, q, p.Covers(q), q.Covers(p), c.pCoversQ, c.qCover)
		}
	}
}

func BenchmarkFromHost(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := FromHost("a.example.com:443"); err != nil {
			b.Fatal(err)
		}
	}
}

func FuzzHostMatch(f *testing.F) {
	for _, s := range [][3]string{
		{"*.example.com", "a.example.com", "**.example.com"}, {"a.b", "A.B.", "*.b"}, {"**.x", "_a.x", "*.y.x"},
		{"*.bücher.de", "x.bücher.de:1", "a.b"}, {"*.x", "fx", "*.x"},
	} {
		f.Add(s[0], s[1], s[2])
	}
	f.Fuzz(func(t *testing.T, pattern, host, other string) {
		h, err := FromHost(host)
		if err != nil {
			return
		}
		if again, err := Normalize(h); err != nil || again != h {
			t.Fatalf("Normalize(%q) = %q, %v: not stable", h, again, err)
		}
		p, err := Parse(pattern)
		if err != nil {
			return
		}
		if again, err := Parse(p.String()); err != nil || again != p {
			t.Fatalf("Parse(%q) = %v, %v: not stable", p, again, err)
		}
		if p.Match(h) {
			if h != p.Name && !strings.HasSuffix(h, "."+p.Name) {
				t.Fatalf("%s matches %s off a label boundary", p, h)
			}
			if p.Depth != Exact && h == p.Name {
				t.Fatalf("%s covers its apex", p)
			}
		}
		q, err := Parse(other)
		if err != nil {
			return
		}
		if p.Overlaps(q) != q.Overlaps(p) {
			t.Fatalf("overlap of %s and %s is not symmetric", p, q)
		}
		if p.Match(h) && q.Match(h) && !p.Overlaps(q) {
			t.Fatalf("%s and %s both match %s but do not overlap", p, q, h)
		}
		if p.Covers(q) && q.Match(h) && !p.Match(h) {
			t.Fatalf("%s covers %s but not its %s", p, q, h)
		}
	})
}
