package server

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// PortHolder names the program that has a port of this machine, "" when nobody has it.
func PortHolder(network string, port uint16) string {
	inodes := map[string]bool{}
	for _, f := range []string{"/proc/net/" + network, "/proc/net/" + network + "6"} {
		socketInodes(f, network == "tcp", port, inodes)
	}
	if len(inodes) == 0 {
		return ""
	}
	fds, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, fd := range fds {
		link, err := os.Readlink(fd)
		if err != nil || !inodes[strings.TrimSuffix(strings.TrimPrefix(link, "socket:["), "]")] {
			continue
		}
		pid := strings.Split(fd, "/")[2]
		name, err := os.ReadFile("/proc/" + pid + "/comm")
		if err != nil {
			return "process " + pid
		}
		return fmt.Sprintf("%s (process %s)", strings.TrimSpace(string(name)), pid)
	}
	// Descriptors of other users' processes are not to be seen.
	return "a program of another user"
}

// socketInodes adds the inodes of sockets bound to port: listening ones for TCP, all for UDP.
func socketInodes(path string, listening bool, port uint16, inodes map[string]bool) {
	f, err := os.Open(path)
	if err != nil {
		return
	}
	defer f.Close()
	sc := bufio.NewScanner(f)
	for sc.Scan() {
		c := strings.Fields(sc.Text())
		if len(c) < 10 || listening && c[3] != "0A" {
			continue
		}
		_, hex, ok := strings.Cut(c[1], ":")
		if !ok {
			continue
		}
		if p, err := strconv.ParseUint(hex, 16, 16); err == nil && uint16(p) == port {
			inodes[c[9]] = true
		}
	}
}
