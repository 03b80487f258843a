package blackbox

import (
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

// district is an adapter with sources of several namespaces and, if it has any,
// the administrator's ceilings.
type district struct {
	*harness.Adapter
	dir   string
	flags []string
}

func (d *district) write(t *testing.T, file, text string) string {
	t.Helper()
	file = filepath.Join(d.dir, file)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// newDistrict starts an adapter for the sources "namespace/name: spec".
func newDistrict(t *testing.T, data, config string, sources ...string) *district {
	t.Helper()
	d := &district{dir: t.TempDir()}
	var text strings.Builder
	for _, s := range sources {
		path, spec, _ := strings.Cut(s, ": ")
		namespace, name, _ := strings.Cut(path, "/")
		fmt.Fprintf(&text, "---\napiVersion: sources.reschedule.dev/v1alpha1\nkind: RescheduleSource\nmetadata: {name: %s, namespace: %s}\nspec:\n  sink: {uri: %q}\n  %s\n",
			name, namespace, sink.URL+"/"+namespace+"-"+name, spec)
	}
	d.flags = harness.Flags(d.write(t, "sources.yaml", text.String()), data)
	if config != "" {
		d.flags = append(d.flags, "--config", d.write(t, "config.yaml", config))
	}
	d.start(t)
	return d
}

func (d *district) start(t *testing.T) {
	t.Helper()
	d.Adapter = harness.Start(t, d.flags...)
}

// put is the status of a PUT with so many bytes of data, and what it says.
func (d *district) put(t *testing.T, path, key string, size int) (status int, says string) {
	t.Helper()
	data := make([]byte, size/4*3)
	rand.Read(data) // what cannot be compressed
	body := `{"delay":"1h","event":{"data":"` + base64.StdEncoding.EncodeToString(data) + `"}}`
	r, err := harness.Do(t.Context(), http.MethodPut, d.URL+"/"+path+harness.KeyPath(key), body)
	if err != nil {
		t.Fatal(err)
	}
	if r.Status == http.StatusTooManyRequests {
		problem(t, r, http.StatusTooManyRequests, "quota_exceeded")
		if r.Header.Get("Retry-After") == "" {
			t.Error("429 without Retry-After")
		}
	}
	return r.Status, string(r.Body)
}

// want makes a PUT with that answer.
func (d *district) want(t *testing.T, path, key string, size, status int, says string) {
	t.Helper()
	if got, body := d.put(t, path, key, size); got != status || !strings.Contains(body, says) {
		t.Errorf("PUT %s %s of %d bytes: %d %s; want %d %s", path, key, size, got, body, status, says)
	}
}

// stored is the metric of stored bytes, by source.
func (d *district) stored(t *testing.T) string {
	t.Helper()
	r, err := harness.Do(t.Context(), http.MethodGet, d.Admin+"/metrics", "")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(regexp.MustCompile(`(?m)^reschedule_stored_bytes.*$`).FindAllString(string(r.Body), -1), "\n")
}

// A namespace that has filled its quota is told which, may replace what it has,
// and does not touch another namespace; a restart keeps what is counted.
func TestQuota_OneNamespaceFullTheOtherWrites(t *testing.T) {
	t.Parallel()
	d := newDistrict(t, filepath.Join(t.TempDir(), "data"),
		"max-bytes: 100Ki\nmax-pending: 6\nnamespaces:\n  large: {max-bytes: 0, max-pending: 100}\n",
		"quota-full/a: ", "quota-full/b: ", "quota-keys/a: ", "quota-other/a: ", "large/a: limits: {maxBytes: 10Ki}", "large/b: ")
	for i := range 2 {
		d.want(t, "quota-full/a", fmt.Sprint(i), 40_000, http.StatusCreated, "")
	}
	full := func() {
		t.Helper()
		d.want(t, "quota-full/a", "new", 40_000, http.StatusTooManyRequests, "max-bytes in config-reschedule")
		d.want(t, "quota-full/b", "new", 40_000, http.StatusTooManyRequests, "max-bytes in config-reschedule")
		d.want(t, "quota-full/a", "1", 40_000, http.StatusOK, "")
		d.want(t, "quota-full/a", "1", 80_000, http.StatusTooManyRequests, "max-bytes in config-reschedule")
	}
	full()
	r, err := harness.Do(t.Context(), http.MethodPost, d.URL+"/quota-full/a", `"`+strings.Repeat("x", 40_000)+`"`,
		"Ce-Id", "1", "Ce-Type", "t", "Ce-Source", "/s", "Ce-Specversion", "1.0", "Content-Type", "application/json", "Ce-Rescheduleafter", "1h")
	if err != nil {
		t.Fatal(err)
	}
	problem(t, r, http.StatusTooManyRequests, "quota_exceeded")
	d.want(t, "quota-other/a", "new", 40_000, http.StatusCreated, "")

	for i := range 6 {
		d.want(t, "quota-keys/a", fmt.Sprint(i), 4, http.StatusCreated, "")
	}
	d.want(t, "quota-keys/a", "6", 4, http.StatusTooManyRequests, "max-pending in config-reschedule")
	d.want(t, "large/a", "0", 8_000, http.StatusCreated, "")
	d.want(t, "large/a", "1", 8_000, http.StatusTooManyRequests, "limits.maxBytes")
	d.want(t, "large/b", "1", 200_000, http.StatusCreated, "")

	before := d.stored(t)
	for range 2 {
		d.Kill()
		d.start(t)
		if after := d.stored(t); after != before || !strings.Contains(after, "quota-full") {
			t.Errorf("after a restart the stored bytes are\n%s\nnot\n%s", after, before)
		}
		full()
	}
	if r, err := harness.Do(t.Context(), http.MethodDelete, d.URL+"/quota-full/a/schedules?all=true", ""); err != nil || r.Status != http.StatusOK {
		t.Fatal(r, err)
	}
	d.want(t, "quota-full/b", "new", 40_000, http.StatusCreated, "")
}

// A bad --config refuses the start and names the key; on SIGHUP it keeps what
// was, and a good one is in force for the next request. What it cuts is in the log.
func TestConfig_IsValidatedAndReloaded(t *testing.T) {
	t.Parallel()
	d := newDistrict(t, filepath.Join(t.TempDir(), "data"), "max-pending: 1\n", "config/a: limits: {maxPending: 5, maxInFlight: 5}")
	d.want(t, "config/a", "1", 4, http.StatusCreated, "")
	d.want(t, "config/a", "2", 4, http.StatusTooManyRequests, "max-pending")

	d.AwaitLog(t, "source=config/a field=spec.limits.maxPending wanted=5 ceiling=1 key=max-pending")
	if strings.Contains(d.Log(), "spec.limits.maxInFlight") {
		t.Errorf("a limit within its ceiling is told:\n%s", d.Log())
	}

	d.write(t, "config.yaml", "")
	if ok, log := d.Reload(t); ok || !strings.Contains(log, "no key") {
		t.Errorf("an emptied file is taken: %s", log)
	}
	d.want(t, "config/a", "2", 4, http.StatusTooManyRequests, "max-pending")
	d.write(t, "config.yaml", "max-pendig: 2\n")
	if ok, log := d.Reload(t); ok || !strings.Contains(log, "max-pendig") {
		t.Errorf("a bad file is taken: %s", log)
	}
	d.want(t, "config/a", "2", 4, http.StatusTooManyRequests, "max-pending")
	bad := append(slices.Clip(d.flags), "--data-dir", t.TempDir())
	if out := harness.Refused(t, bad...); !strings.Contains(out, "max-pendig") {
		t.Errorf("the start says %s", out)
	}
	d.write(t, "config.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: config-reschedule}\ndata:\n  max-pending: \"2\"\n  min-delay: 10m\n")
	if ok, log := d.Reload(t); !ok || strings.Count(log, "source=config/a field=spec.limits.maxPending wanted=5 ceiling=2 key=max-pending") != 1 {
		t.Errorf("a good file is refused, or its cut is not told: %s", log)
	}
	d.want(t, "config/a", "2", 4, http.StatusCreated, "")
	r, err := harness.Do(t.Context(), http.MethodPut, d.URL+"/config/a/schedules/2", `{"delay":"1s"}`)
	if err != nil {
		t.Fatal(err)
	}
	var v harness.Schedule
	if r.Into(t, &v); v.DueAt.Sub(v.ScheduledAt).Minutes() != 10 {
		t.Errorf("a wait below min-delay became %s", v.DueAt.Sub(v.ScheduledAt))
	}
	gone := append(slices.Clip(d.flags), "--data-dir", t.TempDir(), "--config", filepath.Join(d.dir, "gone"))
	if out := harness.Refused(t, gone...); !strings.Contains(out, "gone") {
		t.Errorf("without the file the start says %s", out)
	}
}

// A namespace that has filled the disk does not keep another one from writing,
// and its own entries can still be replaced, removed and delivered.
func TestFullDisk_ANeighbourStillWrites(t *testing.T) {
	t.Parallel()
	disk := t.TempDir()
	if err := syscall.Mount("tmpfs", disk, "tmpfs", 0, "size=64m"); err != nil {
		t.Fatalf("this test needs a small disk of its own: mount: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(disk, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	d := newDistrict(t, filepath.Join(disk, "data"), "", "disk-full/a: ", "disk-other/a: ")
	const size = 100_000
	taken, refused := 0, 0
	eventually(t, "the disk is full for the namespace that fills it", func() bool {
		switch status, body := d.put(t, "disk-full/a", fmt.Sprint("k", taken), size); status {
		case http.StatusCreated:
			taken, refused = taken+1, 0
		case http.StatusInsufficientStorage:
			refused++
		default:
			t.Fatalf("%d %s", status, body)
		}
		return refused == 20
	})
	// The store's own cleaning may take and free space for a moment.
	for i := range 20 {
		eventually(t, "the neighbour writes", func() bool {
			status, _ := d.put(t, "disk-other/a", fmt.Sprint("k", i), 1000)
			return status == http.StatusCreated || status == http.StatusOK
		})
		eventually(t, "what is there is replaced", func() bool {
			status, _ := d.put(t, "disk-full/a", fmt.Sprint("k", i), size)
			return status == http.StatusOK
		})
	}
	if r, err := harness.Do(t.Context(), http.MethodDelete, d.URL+"/disk-full/a/schedules/k0", ""); err != nil || r.Status != http.StatusNoContent {
		t.Error(r, err)
	}
	if r, err := harness.Do(t.Context(), http.MethodPut, d.URL+"/disk-full/a/schedules/k1", `{"delay":0}`); err != nil || r.Status != http.StatusOK {
		t.Error(r, err)
	}
	sink.Next(t, "disk-full-a", "k1")
	// What the store's cleaning has freed meanwhile is soon used up again, by the
	// namespace; the neighbour's part is still there.
	more := 0
	eventually(t, "the namespace that filled the disk gets no more of it", func() bool {
		status, body := d.put(t, "disk-full/a", fmt.Sprint("more", more), 200_000)
		if more++; status != http.StatusCreated && status != http.StatusInsufficientStorage {
			t.Fatalf("%d %s", status, body)
		}
		return status == http.StatusInsufficientStorage
	})
	eventually(t, "the neighbour still writes", func() bool {
		status, _ := d.put(t, "disk-other/a", "last", 1000)
		return status == http.StatusCreated || status == http.StatusOK
	})
}
