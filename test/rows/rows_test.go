package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const sampleRun = `{"Action":"run","Package":"github.com/adit-dev/adit/internal/edge","Test":"TestA/H05_trailers"}
{"Action":"pass","Package":"github.com/adit-dev/adit/internal/edge","Test":"TestA/H05_trailers/quic"}
{"Action":"pass","Package":"github.com/adit-dev/adit/internal/edge","Test":"TestA/H05_trailers"}
{"Action":"pass","Package":"p","Test":"TestB/H011_is_no_row"}
{"Action":"pass","Package":"p","Test":"TestB/H02:_charset"}
{"Action":"fail","Package":"q","Test":"TestB/H02_upper_case"}
{"Action":"skip","Package":"q","Test":"TestB/T99_D01_nc"}
{"Action":"pass","Package":"q","Test":"TestB/H04_text/event-stream"}
`

func TestPrintRows(t *testing.T) {
	dir := t.TempDir()
	list, run := filepath.Join(dir, "rows.txt"), filepath.Join(dir, "run.json")
	write(t, list, "# comment\nH05 now a\nH02 now b\nH01 now c\nH04 now f\nD01 now d\nR08 5 e\n")
	write(t, run, sampleRun)
	var out bytes.Buffer
	ok, err := printRows(list, run, &out)
	if err != nil || ok {
		t.Fatalf("ok %v, err %v", ok, err)
	}
	for _, want := range []string{"H05  pass     a (internal/edge)", "H02  fail", "H01  missing", "D01  skip", "H04  pass", "R08  later"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}

func TestFollowRun(t *testing.T) {
	keep := filepath.Join(t.TempDir(), "run.json")
	var out bytes.Buffer
	ok, err := followRun(strings.NewReader(sampleRun), keep, &out)
	if err != nil || ok {
		t.Fatalf("ok %v, err %v", ok, err)
	}
	if got, _ := os.ReadFile(keep); string(got) != sampleRun {
		t.Errorf("kept %q", got)
	}
	if !strings.HasSuffix(out.String(), "DONE 7 tests, 1 skipped, 1 failures\n") {
		t.Errorf("closing line: %q", out.String())
	}
}

func TestCommittedListParses(t *testing.T) {
	f, err := os.Open("rows.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rows, err := readRows(f)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, r := range rows {
		if seen[r.id] {
			t.Errorf("%s is listed twice", r.id)
		}
		seen[r.id] = true
	}
	if len(rows) < 50 {
		t.Errorf("only %d rows", len(rows))
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestRowsOf(t *testing.T) {
	ids := map[string]bool{"H05": true, "HLE-S1": true, "HLE-S10": true, "TOW-23": true}
	for test, want := range map[string]string{
		"TestA/HLE-S10_never_writes": "HLE-S10", "TestA/TOW-23_H05_both": "TOW-23 H05", "TestA/a/H05:_x": "H05", "TestA/HLE-S1,_HLE-S10_two": "HLE-S1 HLE-S10", "TestA/none_H05": "",
	} {
		if got := strings.Join(rowsOf(test, ids), " "); got != want {
			t.Errorf("%s: %q, want %q", test, got, want)
		}
	}
}
