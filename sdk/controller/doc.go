// Package controller lets an operator that is written with controller-runtime
// run as a Knative Service that scales to zero.
package controller
