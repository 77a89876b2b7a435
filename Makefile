SHELL       := bash
.SHELLFLAGS := -euo pipefail -c

GO ?= go

# What make vet builds and vets for.
SYSTEMS := linux darwin windows

# make test TESTFLAGS='-run TestX -v' and the like. CI=true in the environment
# makes a test that finds something missing fail where it would else skip.
TESTFLAGS  ?=
BENCHFLAGS ?= -benchtime=1s -count=3
BENCH      ?=

GOFUMPT     := mvdan.cc/gofumpt@v0.12.0
GOLANGCI    := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
GOVULNCHECK := golang.org/x/vuln/cmd/govulncheck@v1.9.0

.PHONY: help
help:
	@echo 'make test    install what the tests need, run all tests, and vet'
	@echo 'make vet     vet all modules, for: $(SYSTEMS)'
	@echo 'make lint    formatting, static analysis, known vulnerabilities'
	@echo 'make fmt     format all Go files'
	@echo 'make bench   compare with the least that a lock can cost and with other libraries, on servers of its own'
	@echo 'make microbench  run the benchmarks of all packages, and compare with the floor where there is one'

.PHONY: test
test: deps
	$(GO) test -race -shuffle=on -timeout=30m $(TESTFLAGS) work
	@$(MAKE) --no-print-directory vet

# The emulator of Azure that azurelock's tests install needs Node.js and npm, and
# those of mysqllock MariaDB (they fetch MySQL by themselves).
.PHONY: servers
servers:
	@if ! { command -v node && command -v npm; } >/dev/null && command -v apt-get >/dev/null; then \
		sudo=; if [ "$$(id -u)" != 0 ]; then sudo='sudo -n'; fi; \
		echo 'installing Node.js and npm for the tests of azurelock'; \
		{ $$sudo apt-get update -qq && $$sudo apt-get install -qq -y --no-install-recommends nodejs npm; } || \
			echo 'WARNING: no Node.js: azurelock is NOT TESTED' >&2; \
	fi
	@export PATH="$$PATH:/usr/sbin"; \
	if ! { command -v mariadbd && command -v mariadb-install-db && command -v my_print_defaults; } >/dev/null && command -v apt-get >/dev/null; then \
		sudo=; if [ "$$(id -u)" != 0 ]; then sudo='sudo -n'; fi; \
		echo 'installing MariaDB for the tests of mysqllock'; \
		{ $$sudo apt-get update -qq && $$sudo apt-get install -qq -y --no-install-recommends mariadb-server-core mariadb-client-core; } || \
			echo 'WARNING: no MariaDB: mysqllock is NOT TESTED with it' >&2; \
	fi

# The race detector needs cgo, and that a C compiler.
.PHONY: deps
deps: servers
	@ready() { [ "$$($(GO) env GOOS)" = darwin ] || [ "$$($(GO) env CGO_ENABLED)" = 1 ]; }; \
	if ready; then exit 0; fi; \
	if command -v apt-get >/dev/null; then \
		sudo=; if [ "$$(id -u)" != 0 ]; then sudo='sudo -n'; fi; \
		echo 'installing a C compiler for the race detector'; \
		$$sudo apt-get update -qq && $$sudo apt-get install -qq -y --no-install-recommends gcc libc6-dev; \
	fi; \
	if ! ready; then echo 'go test -race needs a C compiler, and CGO_ENABLED not to be 0' >&2; exit 1; fi

# With -race for this system: what the tests have built serves again then.
.PHONY: vet
vet: deps
	@for os in $(SYSTEMS); do \
		echo "GOOS=$$os $(GO) vet work"; \
		if [ "$$os" = "$$($(GO) env GOOS)" ]; then $(GO) vet -race work; \
		else GOOS=$$os CGO_ENABLED=0 $(GO) vet work; fi; \
	done

.PHONY: lint
lint: gofumpt golangci govulncheck
	@$(MAKE) --no-print-directory vet SYSTEMS=freebsd

.PHONY: gofumpt
gofumpt:
	@wrong=$$($(GO) run $(GOFUMPT) -l .); \
	if [ -n "$$wrong" ]; then echo "not formatted (make fmt):"; echo "$$wrong"; exit 1; fi

.PHONY: fmt
fmt:
	$(GO) run $(GOFUMPT) -w .

.PHONY: golangci
golangci:
	@failed=; \
	for dir in $$($(GO) list -m -f '{{.Dir}}'); do \
		echo "golangci-lint run in $$dir"; \
		(cd $$dir && $(GO) run $(GOLANGCI) run ./...) || failed=1; \
	done; \
	[ -z "$$failed" ]

# A database that can't be reached is no finding, but nor is it an all-clear.
.PHONY: govulncheck
govulncheck:
	@failed=; \
	for dir in $$($(GO) list -m -f '{{.Dir}}'); do \
		echo "govulncheck in $$dir"; \
		out=$$(cd $$dir && $(GO) run $(GOVULNCHECK) ./... 2>&1) && { echo "$$out"; continue; }; \
		echo "$$out"; \
		if grep -Eq 'Get "https://vuln.go.dev/[^"]*": (dial|proxyconnect|net/http: TLS handshake timeout|context deadline)' <<<"$$out"; then \
			echo 'WARNING: vuln.go.dev cannot be reached: NOT checked for known vulnerabilities' >&2; \
		else \
			failed=1; \
		fi; \
	done; \
	[ -z "$$failed" ]

# make bench BENCH='-backends file -tests hot' and the like; BENCH='-o docs' writes
# docs/benchmarks.md. It takes ten minutes, and wants the machine for itself.
.PHONY: bench
bench: servers
	@$(GO) build -o bin/bench ./bench
	@bin/bench $(BENCH)

# Where a benchmark has a case "floor", its other cases are compared with that.
.PHONY: microbench
microbench:
	@$(GO) test -run '^$$' -bench . -benchmem $(BENCHFLAGS) work | awk ' \
		{ print; fflush() } \
		/^Benchmark.*ns\/op/ { \
			name = $$1; sub(/-[0-9]+$$/, "", name); \
			for (i = 3; i < NF; i++) if ($$(i+1) == "ns/op") ns = $$i + 0; \
			if (!(name in best)) order[++n] = name; \
			if (!(name in best) || ns < best[name]) best[name] = ns \
		} \
		END { \
			print "\nBest of all runs, as a multiple of the floor:"; \
			for (i = 1; i <= n; i++) { \
				floor = order[i]; sub(/\/[^\/]*$$/, "/floor", floor); \
				if (floor != order[i] && floor in best) printf "%-44s %7.2f\n", order[i], best[order[i]] / best[floor] \
			} \
		}'
