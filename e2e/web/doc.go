// Package web is the web server of the tests' pods. Unlike [http.Server.Shutdown], it
// answers connections whose first request arrives after the call, and connections in the
// accept queue, which the kernel resets when a listener closes. On a busy machine requests
// wait there for seconds, and a test for lost requests must not blame the network for them.
package web
