// Command promql refuses what is no PromQL, of the lines that it reads.
package main

import (
	"bufio"
	"fmt"
	"os"

	"github.com/prometheus/prometheus/promql/parser"
)

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	p := parser.NewParser(parser.Options{})
	failed := false
	for lines.Scan() {
		if _, err := p.ParseExpr(lines.Text()); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", lines.Text(), err)
			failed = true
		}
	}
	if failed || lines.Err() != nil {
		os.Exit(1)
	}
}
