package command

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"
	"k8s.io/cli-runtime/pkg/genericclioptions"
)

// program is the command line: where it runs, and the flags that all commands have.
type program struct {
	env
	connection
	calledAsKubectl, completesKubectl bool
}

// env is where a command runs.
type env struct {
	in       io.Reader
	out, err io.Writer
	now      func() time.Time
	// asks says that a person is there to answer, screen that the output is a terminal,
	// colour that it may have colours, progress that the standard error is a terminal.
	asks, screen, colour, progress bool
}

// connection is how the sources are found.
type connection struct {
	version         string // of the program that calls
	kube            *genericclioptions.ConfigFlags
	server          string
	tokenFile       string
	metricsServer   string
	serviceAccount  string
	systemNamespace string
	dial            dialer // replaces the port-forward in tests
	requestTimeout  time.Duration
}

// Main runs the command line and returns the exit code.
func Main(ctx context.Context, version string, args []string, in io.Reader, out, errs io.Writer) int {
	p := &program{env: env{in: in, out: out, err: errs, now: time.Now}, connection: connection{version: version}}
	name := strings.TrimSuffix(filepath.Base(args[0]), ".exe")
	p.calledAsKubectl = strings.HasPrefix(name, "kubectl")
	p.completesKubectl = strings.HasPrefix(name, "kubectl_complete-")
	p.asks = terminal(in) && terminal(errs)
	p.screen = terminal(out)
	p.colour = p.screen && obeys(out) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
	p.progress = terminal(errs) && obeys(errs)
	return p.run(ctx, args[1:])
}

func terminal(f any) bool {
	file, ok := f.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// run runs the command with these arguments.
func (p *program) run(ctx context.Context, args []string) int {
	p.in = &interruptible{ctx: ctx, from: p.in}
	printed := &printer{w: p.out, terminal: p.screen}
	p.out = printed
	root := p.root()
	if p.completesKubectl {
		args = append([]string{cobra.ShellCompRequestCmd}, args...)
	}
	root.SetArgs(args)
	root.SetIn(p.in)
	root.SetOut(p.out)
	root.SetErr(p.err)
	root.InitDefaultCompletionCmd() // it keeps the output that is set now
	if c, _, err := root.Find([]string{"completion"}); err == nil {
		c.Args, c.RunE = cobra.ArbitraryArgs, groupRun
	}
	err := root.ExecuteContext(ctx)
	if printed.err != nil && (err == nil || err.Error() == "" || codeOf(err) == exitProblem) { // an answer that was not printed is none
		err = fmt.Errorf("writing the output: %w", printed.err)
	}
	return p.exit(ctx, err)
}

// printer remembers the first error of the output, and writes no more after it.
type printer struct {
	w        io.Writer
	terminal bool
	err      error
}

func (p *printer) Write(b []byte) (n int, err error) {
	if p.err == nil {
		n, p.err = p.w.Write(b)
	}
	return n, p.err
}

// interruptible is a reader that ends with the context: a read of a terminal does not. It
// reads nothing before its first Read, because not every command has an input.
type interruptible struct {
	ctx  context.Context
	from io.Reader
	once sync.Once
	pipe *io.PipeReader
}

func (r *interruptible) Read(b []byte) (int, error) {
	r.once.Do(func() {
		var in *io.PipeWriter
		r.pipe, in = io.Pipe()
		go func() {
			_, err := io.Copy(in, r.from)
			_ = in.CloseWithError(err)
		}()
		context.AfterFunc(r.ctx, func() { _ = in.CloseWithError(context.Cause(r.ctx)) })
	})
	return r.pipe.Read(b)
}

// name is how a user calls the command.
func (p *program) name() string {
	if p.calledAsKubectl {
		return "kubectl reschedule-source"
	}
	return "kn source reschedule"
}

// root is the whole command line.
func (p *program) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "kn-source-reschedule",
		Short: "Look at RescheduleSources and steer them",
		Long: `Look at RescheduleSources and steer them: which keys wait, which are late and why,
run one now, cancel it, redrive dead letters, move keys elsewhere.

Start with "` + p.name() + ` why NAME": one sentence says what is wrong, if anything is.

Exit codes: 0 ok, 1 other, 2 usage, 3 not found, 4 not allowed, 5 conflict, 6 unavailable,
7 some of many failed, 8 why or doctor found a problem. kn itself replaces each by 1.`,
		Version:           p.version,
		SilenceErrors:     true,
		SilenceUsage:      true,
		DisableAutoGenTag: true,
		Annotations:       map[string]string{cobra.CommandDisplayNameAnnotation: p.name()},
	}
	if p.calledAsKubectl {
		root.Use = "kubectl-reschedule_source"
	}
	root.Args = cobra.ArbitraryArgs
	root.RunE = groupRun
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usage("%w", err) })
	p.connection.addFlags(root.PersistentFlags())
	root.AddCommand(
		newWhy(p), newDoctor(p), newList(p), newDescribe(p), newTop(p), newSavings(p),
		newKey(p), newDeadLetter(p),
		newSuspend(p, true), newSuspend(p, false), newDrain(p),
		newExport(p), newImport(p), newBackup(p),
		newCreate(p), newApply(p), newUpdate(p), newDelete(p),
		newToken(p), newUI(p), newVersion(p),
	)
	return root
}

// addFlags adds the flags. kn passes its own ones on, which are the first.
func (c *connection) addFlags(flags *pflag.FlagSet) {
	c.kube = genericclioptions.NewConfigFlags(false)
	f := c.kube
	f.CacheDir, f.APIServer, f.TLSServerName, f.Insecure, f.CertFile, f.KeyFile, f.CAFile = nil, nil, nil, nil, nil, nil, nil
	f.BearerToken, f.Username, f.Password, f.DisableCompression, f.AuthInfoName, f.Timeout = nil, nil, nil, nil, nil, nil
	f.AddFlags(flags)
	flags.StringVar(&c.server, "server", "", "URL of an adapter without a cluster: http://HOST:PORT, or the address of one source, http://HOST:PORT/NAMESPACE/NAME")
	flags.StringVar(&c.tokenFile, "token-file", "", "with --server: file with the bearer token")
	flags.StringVar(&c.metricsServer, "metrics-server", "", "with --server: URL of the adapter's --admin-listen, for what only its metrics show")
	flags.StringVar(&c.serviceAccount, "as-service-account", "default", "service account whose token calls the schedule API: NAME in the namespace of the source, or NAMESPACE/NAME")
	flags.StringVar(&c.systemNamespace, "system-namespace", "", "namespace of the adapter (default: the one of "+strings.Join(systemNamespaces, " and ")+" that has it)")
	flags.DurationVar(&c.requestTimeout, "request-timeout", 30*time.Second, "how long one call may take")
}

// command makes a command whose errors about arguments are errors of usage.
func (p *program) command(use, short, example string, args cobra.PositionalArgs, run func(cmd *cobra.Command, args []string) error) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short, RunE: run, DisableFlagsInUseLine: true}
	if example != "" {
		c.Example = "  " + strings.ReplaceAll(strings.ReplaceAll(strings.TrimSpace(example), "\n", "\n  "), "$", p.name())
	}
	if args != nil {
		c.Args = func(cmd *cobra.Command, given []string) error {
			if err := args(cmd, given); err != nil {
				return usage("%w; see %s --help", err, cmd.CommandPath())
			}
			if err := cmd.ValidateFlagGroups(); err != nil { // else cobra would, and it is no error of usage then
				return usage("%w", err)
			}
			return nil
		}
	}
	return c
}

// group is a command of commands.
func (p *program) group(use, short string, commands ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short, RunE: groupRun}
	c.AddCommand(commands...)
	return c
}

// groupRun is what a command of commands does by itself.
func groupRun(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usage("%s has no command %q; see %s --help", cmd.CommandPath(), args[0], cmd.CommandPath())
	}
	return cmd.Help()
}
