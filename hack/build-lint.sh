#!/usr/bin/env bash
# Builds bin/lint: golangci-lint with the linters of .golangci.yaml alone, and without the commands fmt and migrate:
# build-lint.sh FLAGS OF GO BUILD. What only the others import is two fifths of what a first run would compile for it.
# It is built from a copy of golangci-lint's module, in bin, whose list of linters is shorter.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
module=github.com/golangci/golangci-lint/v2
linters=$(sed -n '/^linters:/,/^  settings:/s/^    - \([a-z0-9]*\).*/\1/p' .golangci.yaml)
source=$(go -C tools list -m -f '{{.Dir}}' "$module")
copy=bin/golangci-lint
rm -rf "$copy"
trap 'rm -rf "$copy"' EXIT # gofmt -l looks into bin too
mkdir -p "$copy"
cp -r --no-preserve=mode "$source"/{go.mod,internal,jsonschema,pkg} "$copy"

# The list has a paragraph for each linter, and imports each from a package of its name. The package golinters has the
# errors of the compiler. A linter that is not found ends this script, and a change of the list's form ends the build.
list=pkg/lint/lintersdb/builder_linter.go
sed 's/^\treturn \[\]\*linter.Config{$/&\n/' "$source/$list" | awk -v names="golinters $linters" '
    BEGIN { RS = ""; ORS = "\n\n"; split(names, list, /[ \n]/); for (i in list) missing[list[i]] = wanted[list[i]] = 1 }
    /^import \(/ {
        count = split($0, lines, "\n"); $0 = lines[1]
        for (i = 2; i <= count; i++) {
            name = lines[i]
            if (!sub(/.*\/pkg\/golinters\//, "", name) || substr(name, 1, length(name) - 1) in wanted) $0 = $0 "\n" lines[i]
        }
    }
    match($0, /linter\.NewConfig\([a-z0-9]+\./) {
        name = substr($0, RSTART + 17, RLENGTH - 18)
        delete missing[name]
        if (!(name in wanted)) next
    }
    { print }
    END { for (name in missing) { print "hack/build-lint.sh: golangci-lint has no linter " name >"/dev/stderr"; failed = 1 }; exit failed }
' >"$copy/$list"
rm "$copy"/pkg/commands/{fmt,migrate}.go
sed -i '/newFmtCommand(\|newMigrateCommand(/d' "$copy/pkg/commands/root.go"

cp tools/go.mod "$copy/tools.mod"
cp tools/go.sum "$copy/tools.sum"
go mod edit -replace="$module=../$copy" "$copy/tools.mod"
# Without the commit in it: the linters' cache is of one build.
CGO_ENABLED=0 go -C tools build -modfile="../$copy/tools.mod" -buildvcs=false "$@" -o ../bin/ ./lint
