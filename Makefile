# The commands of a working day. Each starts from a clean clone on a bare Debian: it installs what is missing.
# How the variants are configured is in CMakePresets.json.
JOBS ?= 2
PREFIX ?= /usr/local
PROG ?=
COMPARE ?=
SOAK ?=
EXPLORE ?=
MUTATE ?=
CTEST ?= --progress
FOLIO_COMPARE = build/venv-tools/bin/folio compare --lib build/libfolio.so --scratch build/try
TRY_NEXT = make try PROG="COMMAND ..."  (the same for a program of yours)

export CMAKE_BUILD_PARALLEL_LEVEL = $(JOBS)
# One more than processors: many tests wait, for a clock or for each other.
export CTEST_PARALLEL_LEVEL = $(shell expr $(JOBS) + 1)

help:
	@echo "make try              two programs on glibc's malloc and on Folio: time, memory, faults; in a minute and a half"
	@echo "make try PROG='...'   the same for a program of yours"
	@echo "make tools            the folio command: runs programs on Folio, explains the memory of running ones"
	@echo "make test             builds, then runs all tests (some twenty minutes)"
	@echo "make build            libfolio.so, libfolio.a, libfolio.o, libfolio-embed.so in build/"
	@echo "make install          libraries, headers, packages, the folio command, manual pages, documents to PREFIX=$(PREFIX)"
	@echo "make install-libraries  the same without the command; make uninstall: takes it away again"
	@echo "make peers            builds the newest versions of those allocators, for make bench"
	@echo "make bench            the benchmarks, beside other allocators, in ten minutes; BENCH=--full: all of them"
	@echo "make compare PROG='...'  the same for a program of yours: all peers, intervals, HTML"
	@echo "make sanitize         unit, stress and model tests under ThreadSanitizer, then AddressSanitizer and UBSan"
	@echo "make soak             everything at once on Folio, checked, for a minute; SOAK='--minutes 10': longer"
	@echo "make explore          every interleaving and stale read of the explorer's scenarios, in hours; writes what it reached"
	@echo "make mutate           weakens each memory order in turn: the explorer must notice; an hour"
	@echo "make clang            builds with clang, warnings as errors; unit tests"
	@echo "make fuzz             the fuzz targets, some seconds each"
	@echo "make cross            unit tests for aarch64, under qemu"
	@echo "make musl             the library in static programs on musl"
	@echo "make check            layering, documentation, tags, symbols, sizes, formatting, clang-tidy, ruff"
	@echo "make format           formats the sources"

build: bootstrap-build
	@tools/preset.sh default libraries

tools: bootstrap-tools build
	@echo "the folio command: build/venv-tools/bin/folio --help  (or, for you alone: pipx install './tools[top,plots,profile]')"

try: bootstrap-tools build
ifdef PROG
	@$(FOLIO_COMPARE) --command '$(subst ','\'',$(PROG))' $(TRY)
else
	@$(FOLIO_COMPARE) --example server --follow 'a program of one thread, in which an allocator matters less' $(TRY)
	@$(FOLIO_COMPARE) --example python --follow '$(TRY_NEXT)' $(TRY)
endif

test: bootstrap-test
	@tools/preset.sh default
	@ctest --preset default $(CTEST)
	@echo "Next: make try (a real program, timed), make sanitize, make help"

bench: bootstrap-bench build
	@python3 bench/run.py $(BENCH)

peers: bootstrap-peers
	@python3 bench/peers/build_peers.py $(PEERS)

compare: bootstrap-bench build
	@python3 bench/compare.py --prog '$(subst ','\'',$(PROG))' $(COMPARE)

install: bootstrap-install build
	@tools/install.sh '$(PREFIX)'

install-libraries: build
	@tools/install.sh --without-command '$(PREFIX)'

uninstall:
	@tools/uninstall.sh '$(PREFIX)'

soak: bootstrap-test
	@tools/preset.sh default soak
	@python3 tests/soak/soak.py $(SOAK)

explore: explorer-tests
	@python3 tests/stress/explorer/explore.py $(EXPLORE)

mutate: explorer-tests
	@python3 tests/stress/explorer/mutate.py $(MUTATE)

explorer-tests: bootstrap-test
	@tools/preset.sh default explorer_tests

sanitize: tsan asan

tsan asan clang fuzz cross musl: %: bootstrap-%
	@tools/preset.sh $*
	@ctest --preset $* $(CTEST)

check: check-house check-tidy check-shell

check-house: bootstrap-check
	@tools/preset.sh default
	@ctest --preset default $(CTEST) -L house

check-tidy: bootstrap-check bootstrap-clang
	@cmake --preset clang > /dev/null
	@python3 tests/house/tidy.py

check-shell: bootstrap-check
	@shellcheck tools/*.sh .ci/run
	@echo "no problems under shellcheck"

format: bootstrap-check
	@python3 tests/house/format.py --fix
	@python3 tests/house/ruff.py --fix

bootstrap-%:
	@tools/bootstrap.sh $*

clean:
	rm -rf build build-*

.NOTPARALLEL:
.PHONY: help build tools try test bench peers compare install soak sanitize tsan asan clang fuzz cross musl
.PHONY: explore mutate explorer-tests
.PHONY: check check-house check-tidy check-shell format clean
