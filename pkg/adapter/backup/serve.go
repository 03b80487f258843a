package backup

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
)

const (
	socketName = "backup.sock"
	// endName is the last file of a back-up, with the checksum of the others.
	endName = "end-of-backup"
	// stallTime is how long the reader may take for a chunk.
	stallTime  = 30 * time.Second
	chunkBytes = 1 << 20
)

// errDisk ends a back-up: it keeps the space of deleted tables.
var errDisk = errors.New("the disk is nearly full")

// Store is what is backed up: a store, or the view of a member of a group.
type Store interface {
	Checkpoint(use func(dir string) error) error
	Usage() (free, reserve, used int64, known bool)
}

// Sealable is a store that takes no change any more once it is sealed.
type Sealable interface {
	Store
	Seal(ctx context.Context) error
}

// Server serves back-ups of one store, and seals it.
type Server struct {
	sealing atomic.Bool
	http    http.Server
	opened  *os.File
	done    chan struct{}
}

// Serve serves back-ups of db, whose directory is dir, until Close.
func Serve(db Sealable, dir string, log *slog.Logger) (*Server, error) {
	opened, path, err := socket(dir)
	if err != nil {
		return nil, err
	}
	// A process that was killed leaves its socket. The lock of the directory is held, so
	// no other adapter serves it.
	err = os.Remove(filepath.Join(dir, socketName))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, errors.Join(fmt.Errorf("backup: removing an old socket: %w", err), opened.Close())
	}
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "unix", path)
	if err == nil {
		err = os.Chmod(filepath.Join(dir, socketName), 0o600)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("backup: listening: %w", err), opened.Close())
	}
	s := &Server{opened: opened, done: make(chan struct{})}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /backup", func(w http.ResponseWriter, r *http.Request) { Send(w, r, db, log) })
	mux.HandleFunc("POST /seal", func(w http.ResponseWriter, r *http.Request) {
		s.sealing.Store(true)
		if err := db.Seal(r.Context()); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	})
	s.http = http.Server{Handler: mux, ReadTimeout: 10 * time.Second, MaxHeaderBytes: 8 << 10, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug)}
	go func() {
		defer close(s.done)
		_ = s.http.Serve(l) // until Close
	}()
	return s, nil
}

const (
	// sealAnswer is how long the answer to a seal may take when the adapter ends because of it.
	sealAnswer = 2 * time.Second
	// sealEnds is a pause in which adapter seal ends: in a container it is killed when the adapter has ended.
	sealEnds = 500 * time.Millisecond
)

// Close cuts off a back-up under way and removes the socket.
func (s *Server) Close() {
	if s.sealing.Load() {
		ctx, cancel := context.WithTimeout(context.Background(), sealAnswer)
		_ = s.http.Shutdown(ctx) // it is closed all the same
		cancel()
		<-time.After(sealEnds)
	}
	_ = s.http.Close()
	<-s.done
	_ = s.opened.Close() // it was only read
}

// socket returns the path of the socket of a data directory, through an open directory:
// the system allows about a hundred bytes for it.
func socket(dir string) (*os.File, string, error) {
	opened, err := os.Open(dir)
	if err != nil {
		return nil, "", fmt.Errorf("backup: %w", err)
	}
	path := filepath.Join(dir, socketName)
	if len(path) > 100 {
		path = filepath.Join("/proc/self/fd", strconv.Itoa(int(opened.Fd())), socketName)
	}
	return opened, path, nil
}

// Send answers with a back-up, or with an error.
func Send(w http.ResponseWriter, r *http.Request, db Store, log *slog.Logger) {
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{}) // the server's would cut it off
	started, sent := time.Now(), int64(0)
	err := db.Checkpoint(func(dir string) error {
		w.Header().Set("Content-Type", "application/x-tar")
		out := &stallWriter{w: w, control: http.NewResponseController(w), ctx: r.Context(), db: db}
		err := archive(out, dir)
		sent = out.sent
		return err
	})
	switch {
	case err == nil:
		log.Info("a back-up was made", "bytes", sent, "took", time.Since(started))
	case sent > 0:
		log.Warn("a back-up was cut off", "bytes", sent, "error", err)
		panic(http.ErrAbortHandler) // the reader must not take it for whole
	case errors.Is(err, store.ErrCheckpoint):
		http.Error(w, "another back-up is under way: try again later", http.StatusConflict)
	case errors.Is(err, store.ErrFull):
		http.Error(w, "the disk is too full for a back-up: free some space", http.StatusInsufficientStorage)
	default:
		log.Warn("a back-up failed", "error", err)
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

// archive writes the files of a checkpoint.
func archive(out io.Writer, dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("backup: %w", err)
	}
	w, sum := tar.NewWriter(out), sha256.New()
	for _, e := range entries {
		if err := addFile(w, sum, filepath.Join(dir, e.Name())); err != nil {
			return fmt.Errorf("backup: %s: %w", e.Name(), err)
		}
	}
	end := checksum(sum)
	err = w.WriteHeader(&tar.Header{Name: endName, Mode: 0o600, Size: int64(len(end))})
	if err == nil {
		_, err = io.WriteString(w, end)
	}
	if err != nil {
		return fmt.Errorf("backup: %w", err)
	}
	return w.Close()
}

// begin adds the name and size of a file to a checksum; its content follows.
func begin(sum hash.Hash, h *tar.Header) { fmt.Fprintf(sum, "%q %d\n", h.Name, h.Size) }

// checksum is the content of the last file.
func checksum(sum hash.Hash) string { return fmt.Sprintf("sha256 %x\n", sum.Sum(nil)) }

func addFile(w *tar.Writer, sum hash.Hash, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close() // it was only read
	info, err := f.Stat()
	if err != nil {
		return err
	}
	h := &tar.Header{Name: info.Name(), Mode: 0o600, Size: info.Size(), ModTime: info.ModTime()}
	if err := w.WriteHeader(h); err != nil {
		return err
	}
	begin(sum, h)
	_, err = io.CopyBuffer(io.MultiWriter(w, sum), struct{ io.Reader }{f}, make([]byte, chunkBytes))
	return err
}

// stallWriter writes while the reader takes what it gets, and the disk has space.
type stallWriter struct {
	w       io.Writer
	control *http.ResponseController
	ctx     context.Context
	db      Store
	sent    int64
}

func (p *stallWriter) Write(b []byte) (int, error) {
	if err := p.ctx.Err(); err != nil {
		return 0, err
	}
	if free, reserve, _, known := p.db.Usage(); known && free < reserve {
		return 0, errDisk
	}
	if err := p.control.SetWriteDeadline(time.Now().Add(stallTime)); err != nil {
		return 0, err
	}
	n, err := p.w.Write(b)
	p.sent += int64(n)
	return n, err
}
