// Package web is the web server of the tests' pods. It shuts down more gracefully than
// net/http: [http.Server.Shutdown] closes a connection whose first request arrives after
// the call, and the kernel resets connections in the accept queue when a listener closes.
// On a busy machine requests wait there for seconds, and a test for lost requests must not
// blame the network for them.
package web
