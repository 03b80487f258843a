// Package hostile attacks the real adapter as tenants and pods without
// credentials could, in the memory of its pod, while a neighbour in a namespace
// of its own goes on calling it and being called.
package hostile
