package pages

import "github.com/adit-dev/adit/internal/reason"

// text is what people read for one reason: what happened, and what helps.
type text struct{ title, text string }

var texts = map[reason.Code]text{
	reason.BadRequest:       {"This request cannot be understood", "Its address or headers are not valid, or could be read in more than one way. Check the address and try again."},
	reason.AccessRequired:   {"Please sign in", "This site is only for people who have signed in."},
	reason.AccessDenied:     {"You may not see this site", "Its owner has not opened it to you. If you think you should get in, ask the owner for access."},
	reason.OriginDenied:     {"The agent may not reach this service", "The agent's own rules do not allow the address behind this site. Its owner can allow it with --allow-target."},
	reason.NoRoute:          {"There is nothing here", "No service is published at this address. Check the spelling; if the site is yours, check its tunnel and its rules."},
	reason.VisitorTimeout:   {"The request took too long to arrive", "Nothing more of it came for a while, so it was given up. Check your connection and try again."},
	reason.TooLarge:         {"The request is too large", "It is larger than this site accepts."},
	reason.WrongHost:        {"Wrong host for this connection", "The request names another site than the connection was opened for. A new connection helps: reload the page."},
	reason.WrongEdge:        {"Wrong edge for this connection", "The connection was meant for another edge. Reload the page."},
	reason.RateLimited:      {"Too many requests", "Wait a little, then try again."},
	reason.Internal:         {"Something went wrong here", "The edge could not handle this request. Try again; if it stays, tell the site's owner the request number below."},
	reason.OriginRefused:    {"The service does not answer", "The agent is connected, but the service behind it refused the connection or ended it. Its owner can check that it runs and listens."},
	reason.OriginUnresolved: {"The service was not found", "The agent is connected, but the address of the service behind it is not known. Its owner can check the tunnel's origin."},
	reason.OriginTLS:        {"The service could not be trusted", "The secure connection from the agent to the service failed. Its owner can check the service's certificate."},
	reason.OriginProtocol:   {"The service's answer makes no sense", "It does not follow the protocol it was asked for. Its owner can check the scheme of the tunnel's origin."},
	reason.NoAgent:          {"This site is offline", "Its agent is not connected at the moment. Try again in a little while; if the site is yours, start the agent or read its log."},
	reason.AgentDraining:    {"This site is restarting", "Its agent is about to stop. Try again in a few seconds."},
	reason.GateUnavailable:  {"Sign-in is not possible at the moment", "The server that checks visitors cannot be reached. Try again in a little while."},
	reason.OriginTimeout:    {"The service took too long", "It was reached, but it did not answer in time. Try again; its owner can check what it is busy with."},
	reason.LoopDetected:     {"This site points to itself", "The request came back to where it started. Its owner can correct the tunnel's origin: it must be the service, not the public address."},
}

func textOf(c reason.Code) text {
	if t, ok := texts[c]; ok {
		return t
	}
	return texts[reason.Internal]
}

// hops of the picture on the page, and the position of each hop that can fail.
var (
	hopNames = []string{"You", "Edge", "Agent", "Service"}
	hopIndex = map[string]int{reason.HopVisitor: 0, reason.HopEdge: 1, reason.HopAgent: 2, reason.HopOrigin: 3}
)

// hopOf is the hop that a visitor should see as failed: an agent that is not there is the
// agent's failure, though the edge noticed it.
func hopOf(e *reason.Error) string {
	switch e.Code {
	case reason.NoAgent, reason.AgentDraining, reason.OriginDenied:
		return reason.HopAgent
	case reason.OriginRefused, reason.OriginUnresolved, reason.OriginTLS, reason.OriginProtocol, reason.OriginTimeout:
		return reason.HopOrigin
	}
	return ""
}
