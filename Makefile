# make prints what there is.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
FUZZTIME ?= 30s
N ?= 1000
JOBS ?= 1
HOURS ?= 100000
HOSTILE ?= 10m
CHAOS ?= 1h
FAULTS ?= Owner_CutOff|Follower_CutOff|LossyNetwork|RoughNetwork|DiskHangs|DiskFails|DiskNearlyFull|DiskFull
PENDING ?= 1000000
TIMES ?= 20
OPERATORS ?= 60
# The packages whose tests start no process.
UNITS = $$(go list ./... | grep -vE '/(test|examples|pkg/client)/')
# The modules with code of this project that others import: make check has them too.
CHECKED := sdk cli
# A cache for each path of a checkout: a shared one remembers the paths of another, which no
# exclusion matches. It outlives the checkout, since a first run takes some minutes.
LINTCACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/reschedule-lint$(subst /,-,$(CURDIR))
LINT := GOGC=off GOMEMLIMIT=4GiB GOLANGCI_LINT_CACHE=$(LINTCACHE) $(CURDIR)/bin/lint run

.PHONY: help
help: ## Print this
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-19s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

FLAGS := $(shell source hack/flags.sh && echo "$$GOFLAGS")

.PHONY: build
build: ## Build bin/adapter and bin/controller
	CGO_ENABLED=0 go build $(FLAGS) -ldflags '-s -w -X main.version=$(VERSION)' -o bin/ ./cmd/...

.PHONY: cli
cli: ## Build bin/kn-source-reschedule, the command line, and its names for kubectl
	CGO_ENABLED=0 go -C cli build $(FLAGS) -ldflags '-s -w -X main.version=$(VERSION)' -o $(CURDIR)/bin/kn-source-reschedule .
	ln -sf kn-source-reschedule bin/kubectl-reschedule_source
	ln -sf kn-source-reschedule bin/kubectl_complete-reschedule_source

.PHONY: generate
generate: ## Write the generated code again: clients, deep copies
	hack/update-codegen.sh

.PHONY: demo
demo: export CGO_ENABLED = 0
demo: export GOFLAGS = $(TESTFLAGS)
demo: ## Watch an operator being woken, on one screen
	@go run ./examples/demo

# How tests are compiled: as a release is, so that both share what is compiled. go test does
# not vet, since the linters do, and vet looks at every dependency: minutes of a first run.
# The compiler and the linker collect no garbage below 1 GiB, which few packages reach: a fifth of their time. As a
# variable of make, GOGC would also reach the tests.
TESTFLAGS := $(FLAGS) -vet=off '-toolexec=env GOGC=off GOMEMLIMIT=1GiB'

# What prints how long it took. The times stand together at the end of .ci/run.
STEP := hack/step.sh

.PHONY: check
check: export CGO_ENABLED = 0
check: export GOFLAGS = $(TESTFLAGS)
check: fmt ## Look at a change, in a minute: format, vet, and the unit tests of the packages that it reaches
	go vet ./...
	go test -short $(UNITS)
	$(PROGRAMS) bash -ec 'for module in $(CHECKED); do go -C $$module vet ./...; go -C $$module test -short ./...; done'

# Builds the programs that tests start, and passes their paths on: see the script.
PROGRAMS := hack/with-programs.sh

# The port of the controller's probes has no setting, so one command at a time starts controllers.
# The lock is on this file, since make locks nothing: the go command locks each go.mod that it reads.
ALONE := flock $(CURDIR)/Makefile

# The steps of make test, LANES at a time: two, because the tests with processes mostly wait while linters and compilers
# compute; only times that a machine under such a load keeps are tested. The race detector runs where this project has
# concurrency of its own, with -short: fewer seeds and rounds, since it takes ten times as long. All of it is compiled
# once, as a release is; the race detector wants cgo. Two go commands at a time would compile the same packages twice: so
# programs are built before the rest, with what the race detector compiles beside them, which shares nothing with the
# rest. The linters need all that is compiled, and come later. go test runs a package again when an input has changed: its
# tests open every file that counts, or read a variable that holds the checksum of a program.
BUILDS := test-programs test-race-build
TESTS := test-processes test-race-units test-lint test-units test-race-processes test-modules test-release test-race-sdk test-monitoring test-page test-generated test-bench
LANES ?= 2

test $(BUILDS) $(TESTS): export CGO_ENABLED = 0
test $(BUILDS) $(TESTS): export GOFLAGS = $(TESTFLAGS)

.PHONY: test $(BUILDS) $(TESTS)
test: ## Run all that needs no pod: linters, unit and race tests, simulation, crashes, black-box tests, a real API server
	$(STEP) "format" $(MAKE) fmt
	$(MAKE) --no-print-directory -j$(LANES) --output-sync=target $(BUILDS)
	$(MAKE) --no-print-directory -j$(LANES) --output-sync=target $(TESTS)

test-programs:
	$(STEP) "programs" $(PROGRAMS) true

test-race-build:
	CGO_ENABLED=1 $(STEP) "race detector: build" $(PROGRAMS) -race go build $(RACE) $(RACED) ./internal/sim

test-lint:
	$(STEP) "linters" $(MAKE) lint

test-units:
	$(STEP) "unit tests" go test $(UNITS)

# go test begins with the first packages, two at a time: the two that take longest, so that neither runs alone at the end.
test-processes:
	$(STEP) "tests with processes" $(ALONE) $(PROGRAMS) go test -timeout 30m ./test/cluster ./test/replicated $$(go list ./test/... ./examples/... | grep -v /test/monitoring$$)

# Its tests need prometheus and promtool, which hack/prometheus.sh finds or fetches.
test-monitoring:
	$(STEP) "alerts and dashboards" $(PROGRAMS) go test ./test/monitoring

# With pebblegozstd the store compresses in Go, as without cgo in a release, and gcc compiles no zstd.
# hack/with-programs.sh has the same.
RACE := -race -tags=grpcnotrace,pebblegozstd

# The packages of the adapter that have concurrency or locks, and the tests that show nothing with the race detector: it
# takes memory and time itself, one goroutine reads a damaged file, the store has the same goroutines in memory as on a
# disk, and sabotage is of a simulation that runs anyway, as are the hours of a tenure.
RACED = $(addprefix ./,$(shell grep -rl -e '^[[:space:]]*go ' -e '^[[:space:]]*"sync' -e ' chan ' --include=*.go pkg/adapter | xargs -n 1 dirname | sort -u))
UNRACED := -skip '^TestMemory_Of|(Little|More|No|The)Memory$$|BoundedInBytes$$|^TestDamage|^TestPebble_OnDisk$$|SabotageIsFound$$|OfAnEarlierTenure$$'

test-race-units:
	CGO_ENABLED=1 $(STEP) "race detector: units" $(PROGRAMS) -race go test $(RACE) $(UNRACED) -short -p 3 -timeout 30m $(RACED) ./internal/sim

test-race-processes:
	CGO_ENABLED=1 $(STEP) "race detector: processes" $(PROGRAMS) -race go test $(RACE) $(UNRACED) -short -timeout 30m ./test/blackbox

# The SDK with another controller-runtime than sdk/go.mod asks for. v0.25 is compiled with what the root module has.
SDKWITH = env CONTROLLER_RUNTIME=$(1) GOWORK=$(CURDIR)/sdk/versions/$(1)/go.work

test-race-sdk:
	CGO_ENABLED=1 $(STEP) "race detector: sdk" $(PROGRAMS) $(call SDKWITH,v0.25) go -C sdk test $(RACE) -short $$(go -C sdk list ./... | grep -v /examples/)

# The tests of test/operators verify the modules of its go.sum, which go test does not see:
# they always run.
test-modules:
	$(STEP) "sdk, cli, bundle" bash -ec 'for module in $(CHECKED); do $(PROGRAMS) go -C $$module test ./...; done; go -C tools test ./olm'
	$(STEP) "sdk, other versions" $(PROGRAMS) bash -ec '$(foreach v,$(notdir $(wildcard sdk/versions/*)),$(call SDKWITH,$(v)) go -C sdk test ./controller;)'
	$(STEP) "operators of the tests" go -C test/operators test -count=1 ./...

test-page:
	$(STEP) "the page in a browser" hack/chromium.sh $(PROGRAMS) go -C test/page test ./...

test-generated:
	$(STEP) "generated code" hack/verify-codegen.sh

test-bench:
	$(STEP) "benchmarks compile and run" $(PROGRAMS) bash -ec 'go -C bench test -short ./...; go -C bench/peers test ./judge'

test-release:
	$(STEP) "a release" hack/test-release.sh

.PHONY: again
again: export CGO_ENABLED = 0
again: export GOFLAGS = $(TESTFLAGS)
again: ## Run all Go tests TIMES times while both processors are busy; what fails is in bin/again (TIMES=20, 10 minutes each)
	$(ALONE) $(PROGRAMS) hack/again.sh $(TIMES)

# What needs another toolchain than Go's. .ci/run has it beside make test.
.PHONY: languages
languages: ## Test what is written in other languages: java, python, rust
	$(STEP) "java" $(MAKE) java
	$(STEP) "kopf, python" $(MAKE) python
	$(STEP) "kube-rs" $(MAKE) rust

.PHONY: fmt
fmt:
	@files=$$(gofmt -l .); \
	if [ -n "$$files" ]; then echo "not formatted by gofmt:"; echo "$$files"; exit 1; fi

# Not test/operators and tools/olm, which have few lines: the linters would analyse all of Helm, cert-manager and the
# Operator Lifecycle Manager for them, which takes minutes.
.PHONY: lint
lint: bin/lint ## Run the linters of .golangci.yaml, with vet among them
	$(LINT) ./...
	GOWORK=$(CURDIR)/tools/lint/go.work $(LINT) ./sdk/... ./cli/... ./test/page/...
	cd bench && $(LINT) --enable-only govet ./...

# Without the commit in it: the linters' cache is of one build.
.PHONY: bin/lint
bin/lint:
	CGO_ENABLED=0 go -C tools build $(FLAGS) -buildvcs=false -o $(CURDIR)/bin/ ./lint

# What the tests of java, python and rust start, with the API server: a test would not wait for a first build of it.
# Compiled as by make test, so that the two share it.
.PHONY: programs
programs: export GOFLAGS = $(TESTFLAGS)
programs: build
	CGO_ENABLED=0 go build -o bin/ ./test/internal/kube/cluster
	@echo "building etcd and kube-apiserver, the first time for some minutes"
	bin/cluster -build

java java-newest python rust: export GOFLAGS = $(TESTFLAGS)
java java-newest python rust: export ADAPTER_BINARY = $(CURDIR)/bin/adapter
java java-newest python rust: export CONTROLLER_BINARY = $(CURDIR)/bin/controller
java java-newest python rust: export CLUSTER_BINARY = $(CURDIR)/bin/cluster

# Maven needs the network until one run has succeeded with these POMs. The oldest JOSDK
# gets the tests of single deliveries; the equality of whole sequences is shown with the newest.
MAVEN = mvn --batch-mode --no-transfer-progress $(if $(shell find java examples/java-* -name pom.xml -newer bin/java.resolved 2>&1),,--offline) -f java/pom.xml

.PHONY: java
java: programs ## Build and test java/ and its examples: the client, JOSDK, Quarkus, Spring Boot (a JDK of at least 17, and Maven)
	$(ALONE) $(MAVEN) -Pframeworks $(MVNFLAGS) verify
	examples/java-webpage/image.sh bin/java-webpage
	PROJECT=examples/java-quarkus MAIN=io.quarkus.runner.GeneratedMain examples/java-webpage/image.sh bin/java-quarkus
	PROJECT=examples/java-spring-boot MAIN=dev.reschedule.examples.springboot.Application examples/java-webpage/image.sh bin/java-spring-boot
	$(MAVEN) -Poldest -pl reschedule-josdk -am -Dtest='DeliverTest,FaultTest,RetryBySourceTest' -Dsurefire.failIfNoSpecifiedTests=false test
	hack/test-java-release.sh $(filter --offline,$(MAVEN))
	touch bin/java.resolved

# With JOSDK, a clone of operator-framework/java-operator-sdk, it is compiled from its tag. No other project may get that
# jar, so it goes into a repository in bin/, which Maven fills first.
.PHONY: java-newest
java-newest: programs ## Test java/ with the newest JOSDK; JOSDK=CLONE tests a tag before its release is at hand
	$(if $(JOSDK),hack/josdk-of-a-tag.sh $(JOSDK) v$(shell sed -n '/<id>newest</,/josdk.version/s:.*<josdk.version>\(.*\)</.*:\1:p' java/pom.xml))
	$(ALONE) mvn --batch-mode --no-transfer-progress $(if $(JOSDK),-Dmaven.repo.local=$(CURDIR)/bin/m2) -f java/pom.xml -Pnewest -pl reschedule-josdk -am $(MVNFLAGS) clean test

# Networks and file systems of the test's own need root, and `make test` does not.
.PHONY: faults
faults: export CGO_ENABLED = 0
faults: export GOFLAGS = $(TESTFLAGS)
faults: ## As root: cut members of a real group off in network namespaces; let their disks hang and fill up
	$(PROGRAMS) go test -count=1 -timeout 10m -tags grpcnotrace,faults -run '$(FAULTS)' -v ./test/replicated

# Takes some minutes, and 2 GB of disk.
.PHONY: bench-group
bench-group: export CGO_ENABLED = 0
bench-group: ## What a change costs in a group; how long one with PENDING keys (PENDING=1000000) takes to go on without its owner, and to take in an empty disk
	$(PROGRAMS) go test -count=1 -timeout 30m -tags grpcnotrace,faults -run '^$$' -bench 'Group_' -benchtime 1x -v ./test/replicated -pending $(PENDING)

.PHONY: chaos
chaos: ## Kill, stop and end members of a real group at random, for CHAOS (CHAOS=1h)
	$(PROGRAMS) go test -count=1 -timeout 0 -run 'TestGroup_Chaos|TestGroup_IsLinearisable' -v ./test/replicated -chaos $(CHAOS)

# The first run needs the network, for the versions of python/requirements.txt.
.PHONY: python
python: programs ## Lint, type-check and test python/ and its example: kopf operators at zero (Python of at least 3.11)
	hack/python.sh ruff format --check --quiet . ../examples/agents ../examples/kopf ../examples/hooks
	hack/python.sh ruff check --quiet . ../examples/agents ../examples/kopf ../examples/hooks
	hack/python.sh mypy
	$(ALONE) hack/python.sh python -m pytest -q $(PYTESTFLAGS)

# Cargo.lock pins every crate; the first run needs the network.
.PHONY: rust
rust: export RUST_BACKTRACE = 0
rust: programs ## Lint and test examples/kube-rs: an operator with kube-rs at zero (Rust)
	cd examples/kube-rs && cargo fmt --check && cargo clippy --locked --quiet --all-targets -- -D warnings && \
		cargo test --locked --quiet --no-run && $(ALONE) cargo test --locked --quiet

# The first run needs the network, for the versions of hack/site/requirements.txt.
.PHONY: site
site: ## Build the pages as a site, in bin/site; a broken link is an error (Python of at least 3.11)
	hack/site.sh

.PHONY: crash
crash: ## Kill the real adapter N times in mid-work and look for what is lost (N=1000 JOBS=1)
	go test -count=1 -timeout 0 -v -run Kill ./test/crash -crash.rounds=$(N) -crash.jobs=$(JOBS)

.PHONY: sim
sim: ## Simulate the core for so many hours of its time, on both processors (HOURS=100000)
	CGO_ENABLED=0 go test -count=1 -timeout 0 -v -run Promise ./internal/sim -sim.hours=$(HOURS)

.PHONY: hostile
hostile: ## Attack the real adapter in every way at once, beside a neighbour that behaves (HOSTILE=10m)
	go test -count=1 -timeout 0 -v -run AllAttacks ./test/hostile -hostile.for=$(HOSTILE)

.PHONY: screenshots
screenshots: ## Write the pictures of docs/cli.md, in docs/images, with a real browser
	hack/chromium.sh $(PROGRAMS) go -C test/page test -count=1 -run Pictures ./... -screenshots

.PHONY: watch-faults
watch-faults: ## Measure the changes that faults lose, by form: a watching source, ApiServerSource, a resident operator
	go test -count=1 -timeout 0 -v -run WatchFaults ./test/cluster -faults.all

.PHONY: bench
bench: ## Measure beside the ceilings of this machine; writes bench/RESULTS.md
	$(PROGRAMS) taskset -c 0,1 go -C bench test -count=1 -timeout 2h -v ./driver -full $(BENCH)

# make test has only the part that judges: to compile nats-server, etcd 3.5, River and Restate's SDK takes a minute.
# BENCH_PEERS='-short' shows in some minutes that all works. PostgreSQL and Redis take part if they are installed, Restate
# if npm is.
.PHONY: bench-peers
bench-peers: export CGO_ENABLED = 0
bench-peers: ## Measure beside other durable timers, in 25 minutes; writes docs/adopters.md (BENCH_PEERS='-only NATS,River': some, on the screen)
	go -C bench/peers build $(FLAGS) -o $(CURDIR)/bin/ .
	[ -d bin/restate/node_modules ] || npm install --no-save --no-audit --no-fund --ignore-scripts --prefix bin/restate @restatedev/restate-server@1.7.12 || true
	RESTATE_SERVER=$$(ls $(CURDIR)/bin/restate/node_modules/@restatedev/restate-server-*/bin/restate-server 2>/dev/null | head -n 1) \
		$(PROGRAMS) taskset -c 0,1 bin/peers -page docs/adopters.md $(BENCH_PEERS)

.PHONY: bench-cluster
bench-cluster: ## Measure what an idle controller and adapter take with 0, 1 and 10,000 sources
	go test -run '^$$' -bench Idle -benchtime 1x -timeout 1h ./test/cluster

.PHONY: bench-scale-to-zero
bench-scale-to-zero: ## Measure in the cluster what an operator costs resident, thin, and asleep; writes docs/scale-to-zero.md and bench/scaletozero
	source hack/cluster/env.sh; go -C bench run ./scaletozero

.PHONY: density
density: ## Measure OPERATORS operators on one node (OPERATORS=60), resident and asleep, and all woken at once; writes docs/images/density.svg
	source hack/cluster/env.sh; go -C bench run ./scaletozero -operators $(OPERATORS) density render

# One fuzz target at a time is all that go test takes.
.PHONY: fuzz
fuzz: ## Run every fuzz target for FUZZTIME (FUZZTIME=30s)
	@git grep -oE '^func Fuzz[A-Za-z0-9_]+' -- '*_test.go' | sed -E 's|^(.*)/[^/]+:func (.*)$$|\1 \2|' | \
	while read -r dir target; do \
		echo "== $$dir $$target"; \
		go -C "$$dir" test . -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME); \
	done

# The targets of clusters use the cluster of KUBECONFIG, with the registry of KO_DOCKER_REPO,
# or else the cluster of cluster-up.
.PHONY: cluster-up
cluster-up: ## Bring up Kubernetes and Knative on this machine (Linux, root), or what is missing of it (KNATIVE=no: without Knative; KUBERNETES=v1.34.4: in another version)
	hack/cluster/up.sh

.PHONY: cluster-down
cluster-down: ## End that cluster and remove what it left, but for its cache (PURGE=--purge: that too)
	hack/cluster/down.sh $(PURGE)

.PHONY: deploy
deploy: ## Install into the cluster, with Knative if it is there, else without
	hack/deploy.sh

.PHONY: e2e
e2e: cluster-up deploy ## Run the tests with pods in the cluster, and bring up what is missing (E2E='-run Wake -v')
	E2E='$(E2E)' hack/e2e.sh

.PHONY: e2e-nodes
e2e-nodes: cluster-up deploy ## Take nodes of that cluster away under three adapters
	NODES=1 E2E='-run TestGroup_NodeLost' hack/e2e.sh

.PHONY: release
release: ## Make the release of the tag of this commit, signed: images in KO_DOCKER_REPO, files in dist (docs/releases.md)
	hack/make-release.sh

.PHONY: test-release-all
test-release-all: ## Make a release for all platforms twice, and compare them (long)
	hack/test-release.sh --all

WAYS ?= helm kubectl kustomize flux olm
.PHONY: test-installs
test-installs: cluster-up ## Install releases of this checkout in the cluster, upgrade, go back and uninstall (WAYS='helm kubectl kustomize flux olm' DRIFT=60)
	hack/test-installs.sh $(WAYS)

.PHONY: test-upgrade
test-upgrade: ## Upgrade the adapters of the commit FROM, built from the history, under load, and go back: alone, in a group, and with a source that watches
	hack/test-upgrade.sh
