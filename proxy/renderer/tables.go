package renderer

// The names of Fanfare's tables of nftables.
const (
	// TableName is the table of family inet with all rules but the redirects.
	TableName = "fanfare"
	// SpareTable is the table that forwards while TableName is replaced. It exists only
	// during that time.
	SpareTable = TableName + "-spare"
	// RedirectTable is the name of the two tables, in families ip and ip6, that redirect
	// connections; each exists as long as it has a redirect. They are not part of TableName
	// because the statement dup, which sends a packet to another host, does not exist in
	// family inet. The name must not change, so that a new version replaces the tables of an
	// older one.
	RedirectTable = TableName + "-handon"
)
