module github.com/reschedule-dev/reschedule/sdk

go 1.25.0
