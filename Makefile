# Everything a developer types. `make` alone lists it.

GO       ?= go
BIN      := $(CURDIR)/bin
TOOLS    ?= $(or $(ADIT_TOOLS),$(BIN)/tools)
RUN_JSON := $(BIN)/test.json
VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
PKGS     ?= ./...
# The race detector needs a C compiler; without one the same tests run plainly.
RACE     ?= $(if $(shell command -v $$($(GO) env CC)),-race)
TESTFLAGS ?= -count=1 -timeout=25m

# What make bench runs; BENCHFLAGS adds to it, for example BENCHFLAGS="-only chisel".
BENCH    := $(GO) test -tags bench -count=1 -timeout=3h -v -run '^TestBench$$' ./test/bench -args
QUICK    := adit (auto|latency|throughput)$$|(throughput|raw) passthrough|http clear|frp quic|haproxy 2 hop tls

export ADIT_TOOLS := $(TOOLS)
export ADIT_BIN   := $(BIN)/adit

.PHONY: help demo build test check lint generate generated rows soak tools cross baseline docs bench bench-quick image charts cluster-up cluster-down

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

demo: ## run the whole system on loopback
	$(GO) run ./cmd/adit demo

build: ## build bin/adit
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w -X github.com/adit-dev/adit/internal/telemetry.version=$(VERSION)' -o $(BIN)/adit ./cmd/adit

test: check build ## run every test of the tree; what the machine lacks is skipped by name
	@test -n "$(RACE)" || echo "test: without the race detector: no C compiler"
	@PATH="$(TOOLS):$$PATH" GO="$(GO)" test/run $(RUN_JSON) $(RACE) $(TESTFLAGS) $(PKGS)

rows: ## print the rows of known faults with the result of the last make test
	@$(GO) run ./test/rows -run $(RUN_JSON)

soak: build ## run the long forms of the tests
	ADIT_TEST_SOAK=1 $(GO) test -tags soak -count=1 -timeout=4h -p 1 -run '$(or $(RUN),.)' $(PKGS)

bench: build ## measure adit beside its peers, and write docs/benchmarks.md
	$(BENCH) -docs $(CURDIR)/docs $(BENCHFLAGS)

bench-quick: build ## the same in under five minutes, with fewer targets, printed only
	$(BENCH) -rounds 1 -length 600ms -path-length 1500ms -scenes '1 % loss, cubic' -idle 1000 -only '$(QUICK)' $(BENCHFLAGS)

image: ## build the image for amd64 and arm64 as an OCI archive, and print its digest
	@VERSION="$(VERSION)" GO="$(GO)" deploy/image/build

charts: ## package the charts with the image's digest into dist/charts; REGISTRY=… pushes them too
	@VERSION="$(VERSION)" GO="$(GO)" HELM="$$(GO="$(GO)" test/charts/tool helm)" deploy/charts

cluster-up: ## start a Kubernetes with one node, to try things in
	$(GO) run ./test/cluster/cmd up

cluster-down: ## end it
	$(GO) run ./test/cluster/cmd down

check: ## gofmt, vet, and the linters where they are installed
	@test/check

lint: tools check ## check, with every linter installed first

generate: tools ## regenerate the code of api/
	cd api && PATH="$(TOOLS):$$PATH" buf generate

baseline: tools ## note the API as published: later changes must stay compatible with it
	cd api && PATH="$(TOOLS):$$PATH" buf build --exclude-source-info -o baseline.binpb

docs: build ## rewrite the parts of docs/reference that come from the code
	ADIT_WRITE_DOCS=1 $(GO) test -count=1 ./test/docs
	ADIT_WRITE_DOCS=1 $(GO) test -count=1 -run '^TestReference$$' ./test/charts

cross: ## build for the other platforms
	GOOS=linux GOARCH=arm64 CGO_ENABLED=0 $(GO) build -o /dev/null ./cmd/adit
	GOOS=darwin GOARCH=arm64 CGO_ENABLED=0 $(GO) build -o /dev/null ./cmd/adit

tools: ## build the pinned tools of tools/go.mod into bin/tools
	@GO="$(GO)" test/tools
