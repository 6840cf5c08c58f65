package discovery

import "os"

// InContainer tells whether this process runs in a container, whose ports are not the host's; getenv
// is os.Getenv.
func InContainer(getenv func(string) string) bool {
	if getenv("KUBERNETES_SERVICE_HOST") != "" || getenv("container") != "" {
		return true
	}
	for _, f := range []string{"/.dockerenv", "/run/.containerenv"} {
		if _, err := os.Stat(f); err == nil {
			return true
		}
	}
	return false
}
