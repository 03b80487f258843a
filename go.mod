module github.com/reschedule-dev/reschedule

go 1.26.0
