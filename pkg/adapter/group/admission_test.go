package group

import (
	"log/slog"
	"testing"
)

// A member joins only once the others have said all, whatever they are called: one that was
// named admitted was waited for, and taken for the verdict.
func TestAdmission_MemberNamedAdmitted(t *testing.T) {
	t.Parallel()
	m, err := Open(Config{DataDir: t.TempDir(), Log: slog.New(slog.DiscardHandler), Settings: Settings{
		Member: "a", peers: map[string]string{"a": "127.0.0.1:1", "admitted": "127.0.0.1:2", "replaceable": "127.0.0.1:3"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	empty, full := admission{Attempt: "1"}, admission{Attempt: "1", Applied: 1, Store: "x"}
	joined := admission{Joined: true, Applied: 7, Store: "x"}
	for _, test := range []struct {
		answers map[string]admission
		want    verdict
		wait    string
	}{
		{nil, waiting, "admitted and replaceable"},
		{map[string]admission{"replaceable": empty}, waiting, "admitted"},
		{map[string]admission{"admitted": empty}, waiting, "replaceable"},
		{map[string]admission{"admitted": empty, "replaceable": empty}, admitted, ""},
		// A group begins with what one of them has, also where that one has joined meanwhile.
		{map[string]admission{"admitted": full, "replaceable": empty}, behind, "the other members"},
		{map[string]admission{"admitted": full, "replaceable": full}, behind, "the other members"},
		{map[string]admission{"admitted": joined, "replaceable": joined}, behind, "the other members"},
		{map[string]admission{"admitted": full}, waiting, "replaceable"},
	} {
		if got, wait, err := m.judge(test.answers, false); got != test.want || wait != test.wait || err != nil {
			t.Errorf("%v: %v, %q, %v", test.answers, got, wait, err)
		}
	}
}
