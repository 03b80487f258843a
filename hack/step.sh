#!/usr/bin/env bash
# Runs a command, and prints its name, how long it took, and how many processors it kept busy:
# step.sh NAME COMMAND... With STEPS in the environment, the line is also appended to that file.
set -uo pipefail
name=$1
shift
used=$(mktemp)
trap 'rm -f "$used"' EXIT
start=$SECONDS
TIMEFORMAT='%U %S'
{ time "$@" 2>&3; } 3>&2 2>"$used"
code=$?
took=$((SECONDS - start))
busy=$(awk -v took="$took" '{ printf "%.1f", ($1 + $2) / (took ? took : 1) }' "$used")
line=$(printf '== %-28s %2d:%02d min, %s processors%s' "$name" $((took / 60)) $((took % 60)) "$busy" "$([ $code = 0 ] || echo "  failed")")
echo "$line"
[ -z "${STEPS:-}" ] || echo "$line" >>"$STEPS"
exit $code
