package group

import (
	"crypto/rand"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"

	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
)

// logDir is the directory of the log in a data directory, and whose it is.
type logDir struct{ data, member string }

// The files in the directory of the log. While joining is there, the log is of a learner that
// has promised nothing to the others, or of a disk that went back: the log begins anew after a crash.
func (d logDir) file(name string) string {
	return filepath.Join(d.data, store.LogDir, name)
}

func (d logDir) has(name string) (bool, error) {
	_, err := os.Stat(d.file(name))
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("group: data directory: %w", err)
	}
	return true, nil
}

// setJoining writes the mark that the log is of a learner, before there is one.
func (d logDir) setJoining() error {
	dir := filepath.Dir(d.file("joining"))
	err := os.MkdirAll(dir, 0o700)
	if err == nil {
		err = os.WriteFile(d.file("joining"), nil, 0o600)
	}
	return errors.Join(err, syncDir(dir), syncDir(d.data))
}

// unsetJoining removes that mark.
func (d logDir) unsetJoining() error {
	at := d.file("joining")
	return errors.Join(os.Remove(at), syncDir(filepath.Dir(at)))
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// The file identity in the directory of the log has the id of the group, and the name of the member. The id is random, and
// goes away with the log: a group that begins anew, as after a restore, has another one. etcd's ids of the group and of
// its members depend on it, so the members of the group refuse a member of another one.
//
// At a first start each member proposes an id, and all take the proposal of the first member by name. It is on disk
// before another member reads it, so a start that was cut off proposes it again.

// readIdentity returns the id in the directory, "" if there is none. The log of another member is refused: etcd would take
// part as that member, a second time.
func (d logDir) readIdentity() (string, error) {
	text, err := os.ReadFile(d.file("identity"))
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("group: data directory: %w", err)
	}
	id, rest, _ := strings.Cut(string(text), "\n")
	name, _, _ := strings.Cut(rest, "\n")
	if identityText(id, name) != string(text) {
		return "", fmt.Errorf("%w: empty the directory of member %s, and it joins the others", errIdentity, d.member)
	}
	if name != d.member {
		return "", fmt.Errorf("group: %s is the directory of member %q, and this is member %s: give the directory of member %s; or an empty one, and it joins the others",
			d.data, name, d.member, d.member)
	}
	return id, nil
}

// errIdentity is the error of an identity that does not have its checksum.
var errIdentity = errors.New("group: the file identity in the directory of the log is damaged")

// identityText is what the file has: the id, the name, and a checksum.
func identityText(id, member string) string {
	text := id + "\n" + member + "\n"
	return fmt.Sprintf("%s%08x\n", text, crc32.ChecksumIEEE([]byte(text)))
}

// writeIdentity puts the id into the directory: it is there, or the id before.
func (d logDir) writeIdentity(id string) error {
	dir := filepath.Dir(d.file("identity"))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("group: data directory: %w", err)
	}
	f, err := os.Create(d.file("identity.new"))
	if err == nil {
		_, err = f.WriteString(identityText(id, d.member))
		err = errors.Join(err, f.Sync(), f.Close())
	}
	if err == nil {
		err = os.Rename(f.Name(), d.file("identity"))
	}
	if err = errors.Join(err, syncDir(dir), syncDir(d.data)); err != nil {
		return fmt.Errorf("group: data directory: %w", err)
	}
	return nil
}

// propose returns the id that this member proposes.
func (d logDir) propose() (string, error) {
	id, err := d.readIdentity()
	if errors.Is(err, errIdentity) { // there is no log: another one is as good
		id, err = "", nil
	}
	if err != nil || id != "" {
		return id, err
	}
	id = rand.Text()
	return id, d.writeIdentity(id)
}
