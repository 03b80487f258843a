package expression

import (
	"crypto/sha256"
	"encoding/binary"
	"sync"
)

// maxVerdicts bounds what Check remembers, about a kilobyte each at most.
const maxVerdicts = 4096

var verdicts = struct {
	sync.Mutex
	of map[[sha256.Size]byte]error
}{of: map[[sha256.Size]byte]error{}}

// Check is the error of [Compile]. It keeps no program and remembers its
// verdicts, so that asking again about what has not changed costs nothing.
func Check(key, when string) error {
	if key == "" && when == "" {
		return nil
	}
	text := binary.AppendUvarint([]byte(ofEvent.variable), uint64(len(key)))
	return verdict(append(append(text, key...), when...), func() error {
		_, err := Compile(key, when)
		return err
	})
}

// CheckWatchKey is the error of [CompileWatchKey], remembered in the same way.
func CheckWatchKey(text string) error {
	if text == "" {
		return nil
	}
	return verdict(append([]byte(ofObject.variable), text...), func() error {
		_, err := CompileWatchKey(text)
		return err
	})
}

// verdict is what compile returned for the text before, or returns now.
func verdict(text []byte, compile func() error) error {
	digest := sha256.Sum256(text)
	verdicts.Lock()
	err, known := verdicts.of[digest]
	verdicts.Unlock()
	if known {
		return err
	}
	err = compile()
	verdicts.Lock()
	defer verdicts.Unlock()
	if len(verdicts.of) >= maxVerdicts {
		clear(verdicts.of)
	}
	verdicts.of[digest] = err
	return err
}
