// Package web is the web server of the tests' pods. It ends as a good one does, and
// better than net/http's: [http.Server.Shutdown] closes a connection whose first
// request it reads after it was called, and the kernel resets those that nobody has
// accepted when a listener closes. On a busy machine requests wait there for seconds,
// and a test that loses none must not blame the network for them.
package web
