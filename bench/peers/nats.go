package main

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strconv"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// natsSchedules is one nats-server, and a worker with a durable consumer of what it publishes when a time has come.
var natsSchedules = &peer{
	name:     "NATS JetStream, message schedules",
	settings: "file storage, one replica, `sync_interval: always`, explicit acks, `AckWait` 30 s (its default)",
	version: func() (string, error) {
		version, err := moduleVersion("github.com/nats-io/nats-server/v2")
		return "nats-server " + version, err
	},
	start: func(h *host) error {
		addr := h.addr("nats")
		if err := h.serve("nats-server", addr, filepath.Join(h.dir, "data")); err != nil {
			return err
		}
		err := ready("nats-server", func() bool {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			js, err := natsConnect(addr)
			if err != nil {
				return false
			}
			defer js.Conn().Close()
			if h.fresh {
				err = natsStream(ctx, js)
			} else {
				_, err = js.Stream(ctx, "timers")
			}
			return err == nil
		})
		return errors.Join(err, h.serve("nats-worker", addr, h.sink))
	},
	connect: func(h *host) (client, error) { return &natsClient{addr: h.addr("nats")}, nil },
}

func natsConnect(addr string) (jetstream.JetStream, error) {
	conn, err := nats.Connect("nats://"+addr, nats.NoReconnect())
	if err != nil {
		return nil, err
	}
	return jetstream.New(conn)
}

// natsStream creates the stream of both schedules and what they publish, and the worker's consumer.
func natsStream(ctx context.Context, js jetstream.JetStream) error {
	stream, err := js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
		Name: "timers", Subjects: []string{"schedule.>", "due.>"}, Storage: jetstream.FileStorage,
		Retention:         jetstream.WorkQueuePolicy, // a delivered message goes when it is acknowledged
		AllowMsgSchedules: true,
	})
	if err != nil {
		return err
	}
	_, err = stream.CreateOrUpdateConsumer(ctx, jetstream.ConsumerConfig{
		Durable: "worker", FilterSubject: "due.>", AckPolicy: jetstream.AckExplicitPolicy, AckWait: lease,
	})
	return err
}

type natsClient struct {
	addr string
	js   jetstream.JetStream
}

func (c *natsClient) open() (err error) {
	if c.js == nil || c.js.Conn().IsClosed() {
		c.js, err = natsConnect(c.addr)
	}
	return err
}

// schedule publishes the one schedule of the key's subject: a later one replaces it.
func (c *natsClient) schedule(ctx context.Context, key string, at time.Time, data string) error {
	if err := c.open(); err != nil {
		return err
	}
	message := &nats.Msg{Subject: "schedule." + key, Data: []byte(data), Header: nats.Header{
		"Nats-Schedule": {"@at " + at.UTC().Format(time.RFC3339Nano)}, "Nats-Schedule-Target": {"due." + key},
	}}
	_, err := c.js.PublishMsg(ctx, message, jetstream.WithRetryAttempts(0))
	return err
}

func (c *natsClient) cancel(ctx context.Context, key string) error {
	if err := c.open(); err != nil {
		return err
	}
	stream, err := c.js.Stream(ctx, "timers")
	if err != nil {
		return err
	}
	return stream.Purge(ctx, jetstream.WithPurgeSubject("schedule."+key))
}

func (c *natsClient) close() {
	if c.js != nil {
		c.js.Conn().Close()
	}
}

func natsServer(args []string) error {
	addr, dir := args[0], args[1]
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return err
	}
	number, _ := strconv.Atoi(port)
	s, err := server.NewServer(&server.Options{Host: host, Port: number, JetStream: true, StoreDir: dir, SyncAlways: true, NoSigs: true})
	if err != nil {
		return err
	}
	s.ConfigureLogger()
	s.Start()
	s.WaitForShutdown()
	return errors.New("nats-server has ended")
}

func natsWorker(args []string) error {
	addr, sink := args[0], args[1]
	js, err := natsConnect(addr)
	if err != nil {
		return err
	}
	consumer, err := js.Consumer(context.Background(), "timers", "worker")
	if err != nil {
		return err
	}
	d, slots := newDeliverer(sink), make(chan struct{}, workers)
	_, err = consumer.Consume(func(m jetstream.Msg) {
		slots <- struct{}{}
		go func() {
			defer func() { <-slots }()
			if d.deliver(context.Background(), m.Subject()[len("due."):], m.Data()) == nil {
				m.Ack()
			}
		}()
	}, jetstream.PullMaxMessages(2*workers))
	if err != nil {
		return err
	}
	select {}
}
