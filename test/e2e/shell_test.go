//go:build e2e

package e2e

import (
	"fmt"
	"testing"
	"time"
)

func TestAnOperatorInShellThatOnlyAnswersDoesItsWorkFromZero(t *testing.T) {
	t.Parallel()
	n := newNamespace(t, "shell")
	n.apply(n.rendered("../../examples/shell-function", "site-check"))
	n.ready(knativeService, n.name)
	n.ready(rescheduling, n.name)
	s := n.existing(n.name)
	n.atZero(n.name)

	up := n.recorderURL() + "/healthz"
	s.send("", "Subject", up)
	if wait := time.Until(s.waiting(up).DueAt); wait < 0 || wait > time.Minute {
		t.Errorf("the site is up, and is to be looked at again after %s", wait)
	}

	down := "http://site." + n.name + ".svc/healthz"
	s.send("", "Subject", down)
	eventually(t, patience, "a site that is not there is looked at again and again", func() error {
		now := s.scheduled(down)
		if now == nil || *now.Attempt < 2 {
			return fmt.Errorf("scheduled is %+v", now)
		}
		return nil
	})
	n.apply("apiVersion: v1\nkind: Service\nmetadata: {name: site}\nspec: {selector: {app: recorder}, ports: [{port: 80, targetPort: 8080}]}")
	if again := s.waiting(down); *again.Attempt != 0 {
		t.Errorf("there now, it is %+v", again)
	}
}
