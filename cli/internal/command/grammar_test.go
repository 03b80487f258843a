package command

import (
	"strings"
	"testing"
)

// grammar is every command, with its flags.
const grammar = `
create --sink --delay --conflict-policy --max-interval --max-in-flight --max-per-second --max-pending --ingest-key --ingest-when --retry --backoff-policy --backoff-delay --timeout --retry-after-max --dl-sink --ce-override --suspend --no-suspend --wait --no-wait
apply --sink --delay --conflict-policy --max-interval --max-in-flight --max-per-second --max-pending --ingest-key --ingest-when --retry --backoff-policy --backoff-delay --timeout --retry-after-max --dl-sink --ce-override --suspend --no-suspend --wait --no-wait
update --sink --delay --conflict-policy --max-interval --max-in-flight --max-per-second --max-pending --ingest-key --ingest-when --retry --backoff-policy --backoff-delay --timeout --retry-after-max --dl-sink --ce-override --suspend --no-suspend --wait --no-wait
delete
list -A -o --no-headers
describe -v -o
suspend --all
resume --all
drain --timeout
top -A --watch -o --no-headers
why -o
doctor -A -o
ui --port
key list --state --overdue --prefix --order --limit --all -o --no-headers
key describe --prefix --all -v -o
key run --prefix --all --dry-run --yes
key delete --prefix --all --dry-run --yes
key set --in --at --policy --data --type --uid --if-match --reason -o
key watch --prefix -o
deadletter list --older-than --prefix -o --no-headers
deadletter describe --all -v -o
deadletter redrive --all --older-than --replace --dry-run --yes
deadletter delete --all --older-than --dry-run --yes
export --prefix
import -f --policy --resume
backup -f
token
completion bash
version -o
`

// Each command and flag of the grammar is there, and the flags of kn and of an adapter
// without a cluster are flags of each command.
func TestGrammar_EachFlagIsThere(t *testing.T) {
	t.Parallel()
	root := (&program{connection: connection{version: "dev"}}).root()
	root.InitDefaultCompletionCmd()
	for line := range strings.Lines(strings.TrimSpace(grammar)) {
		path, flags, _ := strings.Cut(strings.TrimSpace(line), " -")
		c, rest, err := root.Find(strings.Fields(path))
		if err != nil || len(rest) > 0 {
			t.Errorf("%s: there is no such command: %v", path, err)
			continue
		}
		var wanted []string
		if flags != "" {
			wanted = strings.Fields("-" + flags)
		}
		for _, name := range append(wanted, "-n", "--kubeconfig", "--context", "--cluster", "--as", "--as-group", "--as-uid", "--server", "--token-file") {
			f := c.Flag(strings.TrimLeft(name, "-"))
			if !strings.HasPrefix(name, "--") {
				if f = c.Flags().ShorthandLookup(name[1:]); f == nil {
					f = c.InheritedFlags().ShorthandLookup(name[1:])
				}
			}
			t.Logf("%-20s %-20s %t", path, name, f != nil)
			if f == nil {
				t.Errorf("%s has no flag %s", path, name)
			}
		}
	}
}
