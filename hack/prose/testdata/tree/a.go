// Package a: users who read it know who wrote it. A node that lives renews its Lease.
//
// Whoever calls this is
// told of it. A speaker who lives answers. Nobody shall heed anew.
package a

import _ "somebody/else"

// Who has it gets nothing. Who is it? A marshall is not a word of the list.
const text = "somebody else has it" // those that hold it

var raw = `first
the list is to be sorted`

var message, shell = "not answered", "nobodys"
