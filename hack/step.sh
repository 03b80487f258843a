#!/usr/bin/env bash
# Runs a command, and prints its name and how long it took: step.sh NAME COMMAND...
# With STEPS in the environment, the line is also appended to that file.
set -uo pipefail
name=$1
shift
start=$SECONDS
"$@"
code=$?
took=$((SECONDS - start))
line=$(printf '== %-28s %2d:%02d min%s' "$name" $((took / 60)) $((took % 60)) "$([ $code = 0 ] || echo "  failed")")
echo "$line"
[ -z "${STEPS:-}" ] || echo "$line" >>"$STEPS"
exit $code
