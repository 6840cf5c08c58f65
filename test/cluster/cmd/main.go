// Command cmd starts and ends the cluster of a developer: up, down, build (what it runs), or a command to run where its node is.
package main

import (
	"fmt"
	"os"

	"github.com/adit-dev/adit/test/cluster"
)

const name = "dev"

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "cluster:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("say up, down, build, or a command to run where the node is")
	}
	switch args[0] {
	case "build":
		return cluster.Build()
	case "up":
		if err := cluster.Build(); err != nil {
			return err
		}
		c, err := cluster.Up(cluster.Options{Name: name, Log: func(s string) { fmt.Println(s) }})
		if err == nil {
			fmt.Println("kubeconfig:", c.Kubeconfig)
			fmt.Println("try: go run ./test/cluster/cmd kubectl get pods -A")
		}
		return err
	case "down":
		return cluster.Down(name)
	}
	c, err := cluster.Attach(name)
	if err != nil {
		return err
	}
	return c.Shell(args...)
}
