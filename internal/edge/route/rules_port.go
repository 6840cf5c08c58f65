package route

// First returns the rule of a tunnel whose visitors send no requests to match (kinds tls, tcp
// and udp); nil when it has none.
func (rs *Rules) First() *Rule {
	if len(rs.rules) == 0 {
		return nil
	}
	return rs.rules[0]
}
