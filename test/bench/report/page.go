package report

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Publish writes raw data and plots into docs/benchmarks and the made parts of
// docs/benchmarks.md; docs is the folder of the documentation.
func (r *Run) Publish(docs string) error {
	dir := filepath.Join(docs, "benchmarks")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := r.Save(filepath.Join(dir, "raw.json")); err != nil {
		return err
	}
	drawn := r.Plots()
	var shown []string
	for _, p := range plots() {
		svg, ok := drawn[p.file]
		if !ok {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, p.file), []byte(svg), 0o644); err != nil {
			return err
		}
		shown = append(shown, fmt.Sprintf("![%s](benchmarks/%s)\n", p.title, p.file))
	}
	page := filepath.Join(docs, "benchmarks.md")
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	made, err := Fill(string(text), map[string]string{"where": r.Where(), "budgets": r.Budgets(), "plots": strings.Join(shown, "\n"), "tables": r.Markdown()})
	if err != nil {
		return fmt.Errorf("%s: %w", page, err)
	}
	return os.WriteFile(page, []byte(made), 0o644)
}

// Fill replaces the made parts of a page, which stand between "<!-- name: … -->" and "<!-- end -->".
func Fill(page string, parts map[string]string) (string, error) {
	names := make([]string, 0, len(parts))
	for name := range parts {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		re := regexp.MustCompile(`(?s)(<!-- ` + regexp.QuoteMeta(name) + `:[^\n]*-->\n)(.*?)(<!-- end -->)`)
		m := re.FindStringSubmatchIndex(page)
		if m == nil {
			return "", fmt.Errorf("no made part %q", name)
		}
		page = page[:m[4]] + strings.Trim(parts[name], "\n") + "\n" + page[m[5]:]
	}
	return page, nil
}
