// Command rows reads the JSON of a test run.
//
//	rows [-list FILE] [-run FILE]    print each row of the list with pass, fail, skip or missing
//	go test -json ./... | rows -follow -run FILE
//
// The second form shows a run as it goes and keeps its JSON, for machines without gotestsum.
// A row passes if a subtest whose name starts with its id ran and no such subtest failed.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"sort"
	"strings"
	"unicode"
)

func main() {
	list := flag.String("list", "test/rows/rows.txt", "rows that must be shown")
	run := flag.String("run", "bin/test.json", "JSON of the test run")
	follow := flag.Bool("follow", false, "show a run from standard input and keep it in -run")
	flag.Parse()
	var ok bool
	var err error
	if *follow {
		ok, err = followRun(os.Stdin, *run, os.Stdout)
	} else {
		ok, err = printRows(*list, *run, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "rows:", err)
		os.Exit(2)
	}
	if !ok {
		os.Exit(1)
	}
}

// event is one line of `go test -json`.
type event struct {
	Action  string
	Package string
	Test    string
	Elapsed float64
	Output  string
}

func readEvents(r io.Reader, each func(event, []byte) error) error {
	s := bufio.NewScanner(r)
	s.Buffer(nil, 16<<20)
	for s.Scan() {
		var e event
		if json.Unmarshal(s.Bytes(), &e) != nil {
			e = event{Action: "output", Output: s.Text() + "\n"}
		}
		if err := each(e, s.Bytes()); err != nil {
			return err
		}
	}
	return s.Err()
}

// row is one line of the list.
type row struct{ id, stage, text string }

func readRows(r io.Reader) ([]row, error) {
	var rows []row
	s := bufio.NewScanner(r)
	for s.Scan() {
		line := strings.TrimSpace(s.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		f := strings.Fields(line)
		if len(f) < 3 {
			return nil, fmt.Errorf("row %q: want an id, a stage and a text", line)
		}
		rows = append(rows, row{f[0], f[1], strings.Join(f[2:], " ")})
	}
	return rows, s.Err()
}

// outcome counts the subtests of one row.
type outcome struct{ pass, fail, skip int }

func (o outcome) String() string {
	switch {
	case o.fail > 0:
		return "fail"
	case o.pass > 0:
		return "pass"
	case o.skip > 0:
		return "skip"
	}
	return "missing"
}

// rowsOf returns the ids, of those in ids, that an element of a test's name starts with: a
// name may hold slashes of its own.
func rowsOf(test string, ids map[string]bool) (found []string) {
	for element := range strings.SplitSeq(test, "/") {
		for _, word := range strings.FieldsFunc(element, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) && r != '-' }) {
			if !anID.MatchString(word) {
				break
			}
			if ids[word] && !slices.Contains(found, word) {
				found = append(found, word)
			}
		}
	}
	return found
}

// anID is a row of faults, or a statement of HLE's or Towonel's documentation.
var anID = regexp.MustCompile(`^([A-Z][0-9]{2}|HLE-S[0-9]{1,2}|TOW-[0-9]{1,2})$`)

func printRows(list, run string, out io.Writer) (bool, error) {
	lf, err := os.Open(list)
	if err != nil {
		return false, err
	}
	defer lf.Close()
	rows, err := readRows(lf)
	if err != nil {
		return false, err
	}
	rf, err := os.Open(run)
	if err != nil {
		return false, fmt.Errorf("%w (run make test first)", err)
	}
	defer rf.Close()
	ids := map[string]bool{}
	for _, r := range rows {
		ids[r.id] = true
	}
	got := map[string]*outcome{}
	where := map[string]map[string]bool{}
	err = readEvents(rf, func(e event, _ []byte) error {
		for _, id := range rowsOf(e.Test, ids) {
			o := got[id]
			if o == nil {
				o, where[id] = &outcome{}, map[string]bool{}
				got[id] = o
			}
			switch e.Action {
			case "pass":
				o.pass++
			case "fail":
				o.fail++
			case "skip":
				o.skip++
			default:
				continue
			}
			where[id][short(e.Package)] = true
		}
		return nil
	})
	if err != nil {
		return false, err
	}
	all := true
	for _, r := range rows {
		var o outcome
		if g := got[r.id]; g != nil {
			o = *g
		}
		state := o.String()
		if r.stage != "now" && state == "missing" {
			state = "later"
		} else if state != "pass" {
			all = false
		}
		fmt.Fprintf(out, "%-4s %-8s %s%s\n", r.id, state, r.text, places(where[r.id]))
	}
	return all, nil
}

func places(set map[string]bool) string {
	if len(set) == 0 {
		return ""
	}
	var names []string
	for n := range set {
		names = append(names, n)
	}
	sort.Strings(names)
	return " (" + strings.Join(names, ", ") + ")"
}

func short(pkg string) string {
	for _, part := range []string{"/internal/", "/test/", "/cmd/"} {
		if i := strings.Index(pkg, part); i >= 0 {
			return pkg[i+1:]
		}
	}
	return pkg
}

// followRun prints package results and the output of what failed, and a closing line last.
func followRun(in io.Reader, keep string, out io.Writer) (bool, error) {
	f, err := os.Create(keep)
	if err != nil {
		return false, err
	}
	defer f.Close()
	outputs := map[string]*strings.Builder{}
	var o outcome
	broken := false
	err = readEvents(in, func(e event, raw []byte) error {
		if _, err := f.Write(append(raw, '\n')); err != nil {
			return err
		}
		key := e.Package + " " + e.Test
		switch e.Action {
		case "output":
			if outputs[key] == nil {
				outputs[key] = &strings.Builder{}
			}
			outputs[key].WriteString(e.Output)
			return nil
		case "build-output":
			fmt.Fprint(out, e.Output)
		case "build-fail":
			broken = true
		case "pass", "fail", "skip":
			if e.Action == "fail" {
				if b := outputs[key]; b != nil {
					fmt.Fprint(out, b.String())
				}
			}
			if e.Test == "" {
				broken = broken || e.Action == "fail"
				fmt.Fprintf(out, "%-4s %s (%.1fs)\n", e.Action, short(e.Package), e.Elapsed)
				return nil
			}
			switch e.Action {
			case "pass":
				o.pass++
			case "fail":
				o.fail++
			case "skip":
				o.skip++
				fmt.Fprintf(out, "skip %s %s: %s", short(e.Package), e.Test, skipReason(outputs[key]))
			}
			delete(outputs, key)
		}
		return nil
	})
	if err != nil {
		return false, err
	}
	fmt.Fprintf(out, "DONE %d tests, %d skipped, %d failures\n", o.pass+o.fail+o.skip, o.skip, o.fail)
	return o.fail == 0 && !broken, nil
}

// skipReason is the last line a skipped test said before its verdict.
func skipReason(b *strings.Builder) string {
	if b == nil {
		return "\n"
	}
	reason := "\n"
	for line := range strings.Lines(b.String()) {
		if t := strings.TrimSpace(line); t != "" && !strings.HasPrefix(t, "---") && !strings.HasPrefix(t, "===") {
			reason = t + "\n"
		}
	}
	return reason
}
