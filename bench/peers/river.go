package main

import (
	"context"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

// riverJobs is PostgreSQL with a process that works River's jobs. A job has no key: the client remembers the number of
// each key's job, cancels it and inserts another in one transaction.
var riverJobs = &peer{
	name:     "River",
	settings: "on PostgreSQL as below, `MaxWorkers` 100, `JobTimeout` 20 s and `RescueStuckJobsAfter` 30 s (its default: an hour after a kill)",
	version: func() (string, error) {
		river, err := moduleVersion("github.com/riverqueue/river")
		if err != nil {
			return "", err
		}
		postgres, err := postgresLoop.version()
		return "River " + river + ", " + postgres, err
	},
	start: func(h *host) error {
		fresh := h.fresh
		if err := startPostgres(h, ""); err != nil {
			return err
		}
		if fresh {
			if err := riverTables(h.addr("postgres")); err != nil {
				return err
			}
		}
		return h.serve("river", h.addr("postgres"), h.sink)
	},
	connect: func(h *host) (client, error) {
		if h.state == nil { // all callers share a pool, which outlives the server
			pool, err := riverPool(h.addr("postgres"), "64")
			if err != nil {
				return nil, err
			}
			inserts, err := river.NewClient(riverpgxv5.New(pool), &river.Config{})
			if err != nil {
				return nil, err
			}
			h.state = &riverClient{pool: pool, inserts: inserts}
		}
		return h.state.(*riverClient), nil
	},
}

func riverPool(addr, connections string) (*pgxpool.Pool, error) {
	return pgxpool.New(context.Background(), postgresURL(addr)+"&pool_max_conns="+connections)
}

func riverTables(addr string) error {
	pool, err := riverPool(addr, "4")
	if err != nil {
		return err
	}
	defer pool.Close()
	migrator, err := rivermigrate.New(riverpgxv5.New(pool), nil)
	if err != nil {
		return err
	}
	_, err = migrator.Migrate(context.Background(), rivermigrate.DirectionUp, nil)
	return err
}

type timerArgs struct {
	Key  string `json:"key"`
	Data string `json:"data"`
}

func (timerArgs) Kind() string { return "timer" }

type riverClient struct {
	pool    *pgxpool.Pool
	inserts *river.Client[pgx.Tx]
	jobs    sync.Map // key to the number of its newest job
}

func (c *riverClient) schedule(ctx context.Context, key string, at time.Time, data string) error {
	args, opts := timerArgs{key, data}, &river.InsertOpts{ScheduledAt: at}
	old, again := c.jobs.Load(key)
	if !again {
		inserted, err := c.inserts.Insert(ctx, args, opts)
		if err == nil {
			c.jobs.Store(key, inserted.Job.ID)
		}
		return err
	}
	return pgx.BeginFunc(ctx, c.pool, func(tx pgx.Tx) error {
		if _, err := c.inserts.JobCancelTx(ctx, tx, old.(int64)); err != nil {
			return err
		}
		inserted, err := c.inserts.InsertTx(ctx, tx, args, opts)
		if err == nil {
			c.jobs.Store(key, inserted.Job.ID)
		}
		return err
	})
}

func (c *riverClient) cancel(ctx context.Context, key string) error {
	if id, ok := c.jobs.Load(key); ok {
		_, err := c.inserts.JobCancel(ctx, id.(int64))
		return err
	}
	return nil
}

func (c *riverClient) close() {}

type timerWorker struct {
	river.WorkerDefaults[timerArgs]
	*deliverer
}

func (w *timerWorker) Work(ctx context.Context, job *river.Job[timerArgs]) error {
	return w.deliver(ctx, job.Args.Key, []byte(job.Args.Data))
}

func riverWorker(args []string) error {
	addr, sink := args[0], args[1]
	pool, err := riverPool(addr, "32")
	if err != nil {
		return err
	}
	all := river.NewWorkers()
	river.AddWorker(all, &timerWorker{deliverer: newDeliverer(sink)})
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{
		Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: workers}}, Workers: all,
		JobTimeout: 20 * time.Second, RescueStuckJobsAfter: lease,
	})
	if err != nil {
		return err
	}
	if err := client.Start(context.Background()); err != nil {
		return err
	}
	select {}
}
