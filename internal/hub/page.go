package hub

import (
	"encoding/base64"
	"sort"
	"strings"
)

const (
	defaultPage = 100
	maxPage     = 1000
)

// pageToken names the last item of a page by its sort key.
func pageToken(parts ...string) string {
	return base64.RawURLEncoding.EncodeToString([]byte(strings.Join(parts, "\x00")))
}

// pageOf reads size and token of a list request; the token has n parts.
func pageOf(size uint32, token string, n int) (after []string, limit int, err error) {
	limit = int(min(size, maxPage))
	if limit == 0 {
		limit = defaultPage
	}
	if token == "" {
		return make([]string, n), limit, nil
	}
	b, derr := base64.RawURLEncoding.DecodeString(token)
	after = strings.Split(string(b), "\x00")
	if derr != nil || len(after) != n {
		return nil, 0, invalid("page_token", token, "use next_page_token of the page before, or none", "is no page token")
	}
	return after, limit, nil
}

// cut returns one page of items that are sorted by key, and the token of the next.
func cut[T any](items []T, key func(T) string, size uint32, token string) ([]T, string, error) {
	after, n, err := pageOf(size, token, 1)
	if err != nil {
		return nil, "", err
	}
	start := 0
	if token != "" {
		start = sort.Search(len(items), func(i int) bool { return key(items[i]) > after[0] })
	}
	items = items[start:]
	if len(items) <= n {
		return items, "", nil
	}
	return items[:n], pageToken(key(items[n-1])), nil
}
