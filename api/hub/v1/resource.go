package hubv1

// Key is the name of r in the change feed: the kind of item, a slash, its id.
func (r *Resource) Key() string {
	switch i := r.GetItem().(type) {
	case *Resource_Tunnel:
		return "tunnel/" + i.Tunnel.GetId()
	case *Resource_Credential:
		return "credential/" + i.Credential.GetTokenId()
	case *Resource_Edge:
		return "edge/" + i.Edge.GetAddress().GetId()
	case *Resource_Certificate:
		return "certificate/" + i.Certificate.GetName()
	case *Resource_Settings:
		return "settings/"
	case *Resource_Challenge:
		return "challenge/" + i.Challenge.GetType() + "/" + i.Challenge.GetName()
	}
	return ""
}
