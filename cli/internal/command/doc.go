// Package command is the commands of the command line.
//
// It guarantees that what a program reads is stable: exit codes, and JSON as the schedule
// API has it. Answers go to the standard output, everything else to the standard error,
// progress and colours only to a terminal. Text of tenants and sinks has no control
// characters. A command that removes many keys counts them first and asks; without a
// terminal it requires --yes. A change of one key is made at the revision that was read.
//
// How it works: a session finds sources through the API server, requests one token for
// all sources of a namespace, and calls the schedule API through a port-forward that stays
// inside the process. With --server it calls an adapter without a cluster. Every command
// is a file's worth of code on [sdk.Client]. What why, doctor and the page say of a source is
// asked and explained by package why.
//
// It leaves to others: the calls (sdk), and why a key is not delivered (why), and the page (page).
package command
