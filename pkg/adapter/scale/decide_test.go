package scale

import (
	"testing"
	"time"
)

// What a workload needs follows from its schedule and its replicas alone.
func TestDecide_EachState(t *testing.T) {
	now := time.Now()
	at := func(d time.Duration) time.Time { return now.Add(d) }
	for _, tt := range []struct {
		name  string
		view  view
		want  action
		until time.Time
	}{
		{"unknown", view{due: at(0)}, look, time.Time{}},
		{"asleep, due", view{known: true, due: at(0)}, wake, time.Time{}},
		{"asleep, due later", view{known: true, due: at(time.Second)}, rest, at(time.Second)},
		{"asleep, nothing due", view{known: true}, rest, time.Time{}},
		{"asleep under a delivery", view{known: true, underWay: 1}, wake, time.Time{}},
		{"asleep, must stay awake", view{known: true, stays: true}, wake, time.Time{}},
		{"awake, due", view{known: true, replicas: 1, due: at(-time.Hour), active: at(-time.Hour), maySleep: true}, rest, time.Time{}},
		{"awake under a delivery", view{known: true, replicas: 1, underWay: 1, active: at(-time.Hour), maySleep: true}, rest, time.Time{}},
		{"awake, must stay so", view{known: true, replicas: 1, stays: true, active: at(-time.Hour), maySleep: true}, rest, time.Time{}},
		{"cooldown", view{known: true, replicas: 1, active: at(-time.Second), maySleep: true}, rest, at(9 * time.Second)},
		{"cooldown has passed", view{known: true, replicas: 1, active: at(-10 * time.Second), maySleep: true}, lull, time.Time{}},
		{"due within the cooldown", view{known: true, replicas: 1, active: at(-time.Hour), due: at(10 * time.Second), maySleep: true}, rest, at(10 * time.Second)},
		{"due after the cooldown", view{known: true, replicas: 1, active: at(-time.Hour), due: at(10*time.Second + 1), maySleep: true}, lull, time.Time{}},
		{"cooldown and due later", view{known: true, replicas: 1, active: at(-time.Second), due: at(time.Minute), maySleep: true}, rest, at(9 * time.Second)},
		{"not recorded", view{known: true, replicas: 1, active: at(-time.Hour)}, rest, time.Time{}},
		{"scaled up by another hand", view{known: true, replicas: 5, active: at(0), maySleep: true}, rest, at(10 * time.Second)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.view.cooldown = 10 * time.Second
			if got, until := tt.view.decide(now); got != tt.want || !until.Equal(tt.until) {
				t.Errorf("decided %d until %v, want %d until %v", got, until, tt.want, tt.until)
			}
		})
	}
}
