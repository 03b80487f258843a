#!/usr/bin/env bash
# Builds the programs that tests start, and runs a command with their paths in the
# environment: with-programs.sh [-race] COMMAND... With -race it is the adapter alone, which is
# the only one that tests with the race detector start.
#
# Each path holds the checksum of its program. The tests read these variables, so go test
# runs them again when a program has changed, and reuses their result when none has.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
flags=$(source "$root/hack/flags.sh" && echo "$GOFLAGS")
programs=$root/bin/test cgo=0 names=(adapter adapter-replicated controller)
if [ "$1" = -race ]; then
    programs=$root/bin/test-race cgo=1 names=(adapter)
    flags="${flags/grpcnotrace/grpcnotrace,pebblegozstd} -race"
    shift
fi
mkdir -p "$programs"
exec 9>"$programs/lock" # two runs at a time would write the same files
flock 9
# Without the commit in them: a commit alone changes no program.
# shellcheck disable=SC2086 # several flags
CGO_ENABLED=$cgo go -C "$root" build $flags -buildvcs=false -o "$programs/built/" "${names[@]/#/./cmd/}"
if [ $cgo = 0 ]; then
    # shellcheck disable=SC2086 # several flags
    go -C "$root/cli" build $flags -buildvcs=false -o "$programs/built/cli" .
    names+=(cli)
fi
used=()
for name in "${names[@]}"; do
    sum=$(sha256sum <"$programs/built/$name")
    binary=$programs/$name-${sum:0:16}
    if [ ! -e "$binary" ]; then
        cp "$programs/built/$name" "$binary.$$"
        mv "$binary.$$" "$binary"
    fi
    name=${name^^}
    export "${name//-/_}_BINARY=$binary"
    used+=(! -path "$binary")
done
# Another run may still use an older one, so it goes a day after it was built.
find "$programs" -maxdepth 1 -type f -name "*-*" -mmin +1440 "${used[@]}" -delete
exec 9>&-
exec "$@"
