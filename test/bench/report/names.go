package report

// The scenes: where client, edge, agent and origin are to each other.
const (
	Loopback  = "loopback"
	CubicLoss = "40 ms, 1 % loss, cubic"
	BBRLoss   = "40 ms, 1 % loss, bbr"
	NoLoss    = "40 ms, no loss, cubic"
)

// The works: what visitors do.
const (
	Bulk1         = "bulk, 1 stream"
	Bulk16        = "bulk, 16 streams"
	Upload1       = "upload, 1 stream"
	Echo1         = "echo, 1 connection"
	Echo16        = "echo, 16 connections"
	EchoBeside    = "echo beside a bulk stream"
	NewConn1      = "new connection and echo, 1 at a time"
	NewConn16     = "new connection and echo, 16 at a time"
	NewConn32     = "new connection and echo, 32 at a time"
	HTTPKeepAlive = "http keep-alive, 64 connections"
	HTTPFresh1    = "http, connection per request, 1 at a time"
	HTTPFresh32   = "http, connection per request, 32 at a time"
	UDPRate       = "udp 1,200 bytes, 32 in flight"
	UDPPaced      = "udp 1,200 bytes, 20,000 per second"
	UDPLatency    = "udp 1,200 bytes, 1 in flight"
)
