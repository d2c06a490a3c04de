# `make demo` and `make test` do everything on a fresh machine: they install what is missing (and say so), build, and run.
SHELL := /bin/bash
N ?= 100
RECIPE ?= python-numpy
export FORKD_DATA ?= $(CURDIR)/.forkd

.PHONY: demo test check demo-branch bench-fanout bench-rest bench-branch bench-density bench-walls bench-egress torture torture-branch build clean

demo: build ## boot and warm one VM, fork N children of it, show what happened
	@node bench/dist/demo.js --n $(N) --recipe $(RECIPE)

demo-branch: build ## an agent at work is branched into three, each gets another hint
	@node bench/dist/branch-demo.js

test: check ## everything CI runs
	@scripts/setup tests
	@scripts/test

check: build
	@node_modules/.bin/biome check . --error-on-warnings
	@node_modules/.bin/depcruise --config .dependency-cruiser.cjs packages/*/src bench/src
	@cd native && cargo fmt --check 2>/dev/null || [ -z "$$(cargo fmt --version 2>/dev/null)" ]

bench-fanout: build ## spawn N children and compare with the bare engine, runc, bubblewrap and gVisor; last line is JSON
	@scripts/setup peers
	@node bench/dist/fanout.js --n $(N) --recipe $(RECIPE)

bench-rest: build ## what the daemon adds to the round trip, to a spawn and to memory; last line is JSON
	@node bench/dist/rest.js --n $(N) --recipe $(RECIPE)

bench-branch: N = 10
bench-branch: build ## branch running sandboxes in every mode, N times each: how long they stood still, what it stored; last line is JSON
	@node bench/dist/branch.js --n $(N) --recipe $(RECIPE)

bench-density: build ## as many idle children as fit in 8 GiB; last line is JSON
	@node bench/dist/density.js --recipe $(RECIPE)

bench-walls: build ## what jail and network add to the fan-out; last line is JSON
	@node bench/dist/walls.js --n $(N) --recipe $(RECIPE)

bench-egress: build ## how long a change of policy takes to be felt, and what a guest sends and gets through its tap with the proxy and without; last line is JSON
	@node bench/dist/egress.js

torture: N = 50
torture: build ## kill -9 the daemon N times under load, look for whatever was lost or left; last line is JSON
	@node bench/dist/torture/torture.js --n $(N)

torture-branch: CYCLES = 200
torture-branch: build ## branch a guest that writes memory and files CYCLES times, with one and with two CPUs; compare all of it
	@scripts/setup tests
	@CYCLES=$(CYCLES) node_modules/.bin/vitest run packages/daemon/src/branch-consistency.test.ts

build: ## install what is missing, compile both languages
	@scripts/setup
	@scripts/build

clean: ## remove everything the other targets made
	rm -rf .forkd node_modules native/target native/dist packages/*/dist bench/dist bench/results packages/*/*.tsbuildinfo bench/*.tsbuildinfo
