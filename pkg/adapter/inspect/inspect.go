// Package inspect is the adapter's offline tools: adapter inspect DIR shows
// what a data directory holds, and adapter verify DIR holds every record, index
// row and counter against each other. adapter repair DIR NEW copies what can be
// read of a damaged directory into a new one. They change nothing in DIR, which must not be in
// use, and print JSON.
package inspect

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"

	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
)

// Exit codes of [Main].
const (
	exitOK      = 0
	exitProblem = 1 // verify found something, repair lost something, or the key is not there
	exitUsage   = 2
	exitFailed  = 3 // the directory cannot be read, or the output not written
)

// pageRows is how many entries are read at a time.
const pageRows = 1000

// Main runs "inspect", "verify" or "repair" with its arguments and returns the
// exit code: 0 all is well, 1 verify found a problem, repair lost an entry or the
// key is absent, 2 wrong usage, 3 the directory cannot be read or written, or the
// output not written.
func Main(args []string, stdout, stderr io.Writer) int {
	run := inspect
	switch args[0] {
	case "verify":
		run = verify
	case "repair":
		run = repair
	}
	code, err := run(args[1:], stdout, stderr)
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(stderr, "adapter "+args[0]+":", err)
	}
	return code
}

func verify(args []string, stdout, stderr io.Writer) (int, error) {
	flags := flagSet("verify DIR", stderr)
	dir, err := parse(flags, args)
	if err != nil {
		return exitUsage, err
	}
	report, err := store.Verify(store.Options{Dir: dir})
	if err != nil {
		return exitFailed, err
	}
	if err := print(stdout, report, "  "); err != nil {
		return exitFailed, err
	}
	if !report.Clean() {
		return exitProblem, fmt.Errorf("%d problems", report.ProblemCount)
	}
	return exitOK, nil
}

func repair(args []string, stdout, stderr io.Writer) (int, error) {
	flags := flagSet("repair DIR NEW", stderr)
	if err := flags.Parse(args); err != nil {
		return exitUsage, err
	}
	if flags.NArg() != 2 {
		flags.Usage()
		return exitUsage, errors.New("give the data directory, and an empty one into which all that can be read is copied")
	}
	repaired, err := store.Repair(store.Options{Dir: flags.Arg(0)}, flags.Arg(1))
	if err != nil {
		return exitFailed, err
	}
	if err := print(stdout, repaired, "  "); err != nil {
		return exitFailed, err
	}
	if repaired.Lost > 0 || repaired.Gaps > 0 {
		return exitProblem, fmt.Errorf("copied, except %d unreadable entries; %d places may have held entries that no index names", repaired.Lost, repaired.Gaps)
	}
	return exitOK, nil
}

func inspect(args []string, stdout, stderr io.Writer) (int, error) {
	flags := flagSet("inspect [--source NAMESPACE/NAME [--key KEY | --prefix P | --dead-letters | --watched]] DIR", stderr)
	source := flags.String("source", "", "list the entries of one source, one JSON object a line")
	key := flags.String("key", "", "show one key of the source")
	prefix := flags.String("prefix", "", "list only the keys with this prefix")
	letters := flags.Bool("dead-letters", false, "list what waits for the dead letter sink instead of the keys")
	watched := flags.Bool("watched", false, "list the watched objects instead of the keys, the state of each watch first")
	dir, err := parse(flags, args)
	if err != nil {
		return exitUsage, err
	}
	given := 0
	for _, is := range []bool{*key != "", *prefix != "", *letters, *watched} {
		if is {
			given++
		}
	}
	switch {
	case *source == "" && given > 0:
		return exitUsage, errors.New("--key, --prefix, --dead-letters and --watched need --source")
	case given > 1:
		return exitUsage, errors.New("give one of --key, --prefix, --dead-letters and --watched")
	}
	db, err := store.Open(store.Options{Dir: dir, ReadOnly: true})
	if err != nil {
		return exitFailed, err
	}
	switch {
	case *source == "":
		err = overview(db, stdout)
	case *key != "":
		err = show(db, *source, *key, stdout)
	case *watched:
		err = listWatched(db, *source, stdout)
	case *letters:
		err = list(db, *source, func(after string) ([]store.Item, bool, error) {
			return db.DeadLetters(*source, after, pageRows)
		}, stdout)
	default:
		err = list(db, *source, func(after string) ([]store.Item, bool, error) {
			return db.List(*source, *prefix, after, pageRows, true)
		}, stdout)
	}
	switch err = errors.Join(err, db.Close()); {
	case err == nil:
		return exitOK, nil
	case errors.Is(err, errAbsent):
		return exitProblem, err
	}
	return exitFailed, err
}

func overview(db *store.DB, stdout io.Writer) error {
	o, err := db.Overview()
	if err != nil {
		return err
	}
	return print(stdout, o, "  ")
}

var errAbsent = errors.New("there is no such key")

func show(db *store.DB, source, key string, stdout io.Writer) error {
	e, err := db.Get(source, key)
	if err != nil {
		return err
	}
	if e == nil {
		return fmt.Errorf("source %q, key %q: %w", source, key, errAbsent)
	}
	return print(stdout, store.NewDump(source, key, e, db.ID()), "  ")
}

// list prints all entries, page by page; page reads the entries after a key.
func list(db *store.DB, source string, page func(after string) ([]store.Item, bool, error), stdout io.Writer) error {
	after, unreadable := "", 0
	for {
		items, more, err := page(after)
		if err != nil {
			return err
		}
		for _, item := range items {
			after = item.Key
			if item.Entry == nil {
				unreadable++
				continue
			}
			key := item.Key
			if letter := item.Entry.DeadLetter; letter != nil {
				key = letter.Key // the key it was delivered for
			}
			if err := print(stdout, store.NewDump(source, key, item.Entry, db.ID()), ""); err != nil {
				return err
			}
		}
		if !more {
			break
		}
	}
	if unreadable > 0 {
		return fmt.Errorf("%d entries cannot be read and are left out: adapter verify tells which", unreadable)
	}
	return nil
}

// watchDump is the state of a watch in readable form. The number of a watch is a hash.
type watchDump struct {
	Watch    string `json:"watch"`
	Scope    string `json:"scope,omitempty"`
	Version  string `json:"resourceVersion,omitempty"`
	Complete bool   `json:"complete"`
	Revision string `json:"sinkRevision,omitempty"`
}

// markDump is a watched object in readable form.
type markDump struct {
	Watch       string   `json:"watch"`
	Object      string   `json:"object"`
	UID         string   `json:"uid"`
	Fingerprint string   `json:"fingerprint"`
	Keys        []string `json:"keys,omitempty"` // else its own
}

func listWatched(db *store.DB, source string, stdout io.Writer) error {
	states, err := db.WatchStates(source)
	if err != nil {
		return err
	}
	for _, s := range states {
		watch := fmt.Sprintf("%016x", s.Watch)
		if err := print(stdout, watchDump{watch, s.Scope, s.Version, s.Complete, s.Revision}, ""); err != nil {
			return err
		}
		after := ""
		for more := true; more; {
			var marks []store.Mark
			if marks, more, err = db.Marks(source, s.Watch, after, pageRows); err != nil {
				return err
			}
			for _, m := range marks {
				after = m.Object
				if err := print(stdout, markDump{watch, m.Object, m.UID, fmt.Sprintf("%016x", m.Hash), m.Keys}, ""); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func flagSet(usage string, stderr io.Writer) *flag.FlagSet {
	name, _, _ := strings.Cut(usage, " ")
	flags := flag.NewFlagSet(name, flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprintln(stderr, "usage: adapter "+usage)
		flags.PrintDefaults()
	}
	return flags
}

// parse takes flags before and after the directory.
func parse(flags *flag.FlagSet, args []string) (dir string, err error) {
	if err := flags.Parse(args); err != nil {
		return "", err
	}
	if flags.NArg() == 0 {
		flags.Usage()
		return "", errors.New("give the data directory")
	}
	dir = flags.Arg(0)
	if err := flags.Parse(flags.Args()[1:]); err != nil {
		return "", err
	}
	if flags.NArg() > 0 {
		return "", fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	return dir, nil
}

func print(w io.Writer, v any, indent string) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", indent)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}
