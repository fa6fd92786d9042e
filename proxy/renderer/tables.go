package renderer

// The tables of nftables that are ours.
const (
	// TableName is in family inet.
	TableName = "fanfare"
	// SpareTable does the table's work while that is replaced.
	SpareTable = TableName + "-spare"
	// RedirectTable is the name of the tables, one for each family, that redirect connections;
	// each exists as long as there is any. The statement dup, which sends a packet to another
	// host, does not exist in the family inet. The name stays, so that a new version replaces
	// the tables of an older one.
	RedirectTable = TableName + "-handon"
)
