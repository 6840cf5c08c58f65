// Command adit is every part of Adit: server, agent and the tools that manage them.
package main

import (
	"os"

	"github.com/adit-dev/adit/internal/cli"
)

func main() { os.Exit(cli.Main(os.Args[1:])) }
