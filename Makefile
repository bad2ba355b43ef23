# One command for each task. Each command sets up what it needs. `make help` lists them.
#
#   PYTHON=python3.13 make test     chooses the interpreter (Python >= 3.11)
#   make test TEST_ARGS='-k index'  passes arguments to pytest
#
# Each purpose has a virtual environment .venv/<purpose>-<version>. The package is built in isolation, as pip does it for
# a user, and installed as a wheel. Nothing is imported from the checkout, so no stale file is tested. Special builds
# (sanitizers, libraries of the system) are unpacked beside the environment of the tests, and come before the wheel on
# the path. Stamp files make a second run start at once.
#
#   make PYTHON=python3.13 WHEEL_VERSION=3.11 test   tests the wheel of `make build` with 3.11: its ABI is for both

# Without a compiler these builds fail. pip alone would build the wheel without the engine (setup.py).
export SHARDCODEC_ENGINE ?= 1
PYTHON ?= python3
# Which tests: an expression of markers, and folders. Two processes run them; an idle one takes tests from the other.
TIER ?= not nightly
TESTS ?= tests
TEST_ARGS ?= -n 2 --dist worksteal
BENCH_ARGS ?=
SUITE_ARGS ?=
XARRAY_ARGS ?=
FUZZ_SECONDS ?= 20

.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.SECONDARY:
MAKEFLAGS += --no-builtin-rules

ifneq ($(filter-out clean help,$(or $(MAKECMDGOALS),help)),)
INTERPRETER := $(shell scripts/find-python '$(PYTHON)')
ifeq ($(INTERPRETER),)
$(error PYTHON=$(PYTHON) does not run; name a Python >= 3.11 that does)
endif
# 3.14t is the free-threaded 3.14.
VERSION := $(shell '$(INTERPRETER)' -c 'import sys, sysconfig; print("%d.%d" % sys.version_info[:2], \
  end="t" * bool(sysconfig.get_config_var("Py_GIL_DISABLED")))')
endif
WHEEL_VERSION ?= $(VERSION)

# Folders are listed too: their time stamps change when a file is added or deleted.
SOURCES := setup.py pyproject.toml MANIFEST.in $(wildcard README.md) LICENSE NOTICES \
  $(shell find csrc shardcodec \( -name __pycache__ -prune \) -o \( -type d -o -name '*.[ch]' -o -name '*.py' \
    -o -name '*.pyi' -o -name '*.pyx' -o -name '*.pxi' -o -name '*.pxd' -o -name 'exports.*' \) -print)
PIP_FLAGS := --quiet --disable-pip-version-check
# Only a small part of an environment is ever imported. Python compiles that part at import and keeps the result.
pip_install = -m pip install $(PIP_FLAGS) --no-compile
unexport PYTHONDONTWRITEBYTECODE

# $(call venv,purpose): its interpreter
venv = .venv/$(1)-$(VERSION)/bin/python

# PYTHONSAFEPATH keeps the checkout off sys.path, in child processes as well.
pytest = PYTHONSAFEPATH=1 $(call venv,$(1)) -m pytest

# $(call special,kind): a folder for PYTHONPATH, with a special build
special = $(CURDIR)/build/special/$(1)-$(VERSION)

.PHONY: help
help:
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 14

# ---------------------------------------------------------------- building

.venv/%-$(VERSION)/bin/python:
	'$(INTERPRETER)' -m venv .venv/$*-$(VERSION)

# The build requirements of pyproject.toml, without their dependencies: of blosc2 only the archive is needed.
.venv/build-$(VERSION)/stamp: pyproject.toml | .venv/build-$(VERSION)/bin/python
	$(call venv,build) $(pip_install) --no-deps $$($(call venv,build) -c \
	  'import tomllib; print(*tomllib.load(open("$<", "rb"))["build-system"]["requires"])')
	touch $@

# setuptools writes into the source tree, so with `make -j` builds run one after the other.
one_build := $(if $(shell command -v flock),flock build/lock)

build/wheels/plain-$(VERSION)/stamp: $(SOURCES) | .venv/build-$(VERSION)/bin/python
	mkdir -p $(@D)
	rm -rf $(@D)/*
	$(one_build) $(call venv,build) -m pip wheel $(PIP_FLAGS) --no-deps --wheel-dir $(@D) .
	touch $@

ifneq ($(WHEEL_VERSION),$(VERSION))
build/wheels/plain-$(WHEEL_VERSION)/stamp: $(SOURCES)
	$(error the wheel of Python $(WHEEL_VERSION) is missing or older than the sources: make PYTHON=python$(WHEEL_VERSION) build)
endif

comma := ,

# $(call special_build,kind,switches): build/special/<kind>-<version>/stamp, beside the package
define special_build
build/special/$(1)-$(VERSION)/stamp: $(SOURCES) .venv/build-$(VERSION)/stamp
	mkdir -p $$(@D)
	rm -rf $$(@D)/*
	$(2) $$(one_build) $(call venv,build) $(pip_install) --no-build-isolation --no-deps --target $$(@D) .
	touch $$@
endef
$(eval $(call special_build,system,SHARDCODEC_LIBS=system SHARDCODEC_DEBUG=1))
$(eval $(call special_build,without-engine,SHARDCODEC_ENGINE=0))
$(eval $(call special_build,asan,CC=gcc SHARDCODEC_SANITIZE=address$(comma)undefined))
$(eval $(call special_build,tsan,CC=gcc SHARDCODEC_SANITIZE=thread))

# $(call needed,purpose,extras): .venv/<purpose>-<version>/needed: the requirements of the package, without the package
define needed
.venv/$(1)-$(VERSION)/needed: pyproject.toml | .venv/$(1)-$(VERSION)/bin/python
	$(call venv,$(1)) -c 'import sys, tomllib; made = tomllib.load(open("$$<", "rb"))["project"]; \
	  print(*made["dependencies"], *(need for extra in sys.argv[1:] for need in made["optional-dependencies"][extra]), sep="\n")' \
	  $(2) > $$@.txt
	$(call venv,$(1)) $(pip_install) -r $$@.txt
	touch $$@
endef

# $(call environment,purpose,extras): .venv/<purpose>-<version>/stamp, with the wheel
define environment
$(call needed,$(1),$(2))

.venv/$(1)-$(VERSION)/stamp: build/wheels/plain-$(WHEEL_VERSION)/stamp .venv/$(1)-$(VERSION)/needed
	$(call venv,$(1)) $(pip_install) --no-deps --force-reinstall $$(<D)/*.whl
	touch $$@
endef
$(eval $(call environment,demo,demo))
$(eval $(call environment,test,test))
$(eval $(call environment,bench,bench))
$(eval $(call environment,suite,))
$(eval $(call environment,xarray,))
$(eval $(call environment,docs,docs))

# Make the package of the checkout importable, and nothing else of it, as after an installation: else a child of a test finds
# what it will not find in a wheel. The .dist-info folder has the entry points.
$(eval $(call needed,dev,test dev))
.venv/dev-$(VERSION)/stamp: .venv/dev-$(VERSION)/needed
	$(call venv,dev) $(pip_install) --no-deps $$($(call venv,dev) -c \
	  'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"])')
	site=$$($(call venv,dev) -c 'import sysconfig; print(sysconfig.get_path("purelib"))'); \
	  $(call venv,dev) setup.py --quiet dist_info --output-dir "$$site"; mkdir -p "$$site/../checkout"; \
	  ln -sfn '$(CURDIR)/shardcodec' "$$site/../checkout/shardcodec"; echo ../checkout > "$$site/shardcodec-dev.pth"
	touch $@

.PHONY: dev
dev: .venv/dev-$(VERSION)/stamp ## build changed files into the checkout; .venv/dev-*/bin/python imports it
	@mkdir -p build
	$(one_build) $(call venv,dev) setup.py --quiet build_ext --inplace

# Make environments in advance, such as prepare-test; with -j, two at the same time.
prepare-check: .venv/dev-$(VERSION)/needed
prepare-suite prepare-xarray: prepare-%: .venv/%-$(VERSION)/requirements.txt
prepare-system prepare-asan prepare-tsan: prepare-%: build/special/%-$(VERSION)/stamp
prepare-%: .venv/%-$(VERSION)/stamp
	@:

# The same without the package.
needed-%: .venv/%-$(VERSION)/needed
	@:

.PHONY: build
build: build/wheels/plain-$(VERSION)/stamp ## build the wheel
	@ls $(<D)/*.whl

# ---------------------------------------------------------------- wheels for others

# `make wheels ARCHITECTURES='x86_64 aarch64'` builds for several.
ARCHITECTURES ?= x86_64
# The interpreters that install the wheel; those that do not run here are skipped by name.
WHEEL_PYTHONS ?= 3.11 3.12 3.13 3.14
CHECK_ARGS ?=
WHEEL_ARGS := --demo --also tests/kernels/test_crc32c.py

.venv/wheels-$(VERSION)/stamp: pyproject.toml | .venv/wheels-$(VERSION)/bin/python
	$(call venv,wheels) $(pip_install) --no-deps $$($(call venv,wheels) -c 'import tomllib; made = tomllib.load(open("$<", "rb")); \
	  print(*(one for one in made["build-system"]["requires"] if not one.startswith("blosc2")))')
	$(call venv,wheels) $(pip_install) $$($(call venv,wheels) -c 'import tomllib; made = tomllib.load(open("$<", "rb")); \
	  print(*made["project"]["optional-dependencies"]["wheels"])')
	touch $@

dist/$(subst $() ,-,$(ARCHITECTURES)).stamp: $(SOURCES) scripts/build_wheels.py .venv/wheels-$(VERSION)/stamp
	mkdir -p dist build
	rm -f dist/*.stamp
	$(one_build) $(call venv,wheels) scripts/build_wheels.py dist $(ARCHITECTURES) any
	touch $@

.PHONY: wheels
wheels: dist/$(subst $() ,-,$(ARCHITECTURES)).stamp ## sdist and manylinux wheels in dist/; install the wheel in bare environments of Python 3.11 to 3.14
	for version in $(WHEEL_PYTHONS); do \
	  if found=$$(scripts/find-python python$$version); then "$$found" scripts/check_wheel.py dist/*_$$(uname -m).whl $(WHEEL_ARGS); \
	  else echo "skipped: python$$version"; fi; done

.PHONY: reproducible
reproducible: .venv/wheels-$(VERSION)/stamp ## build the wheel twice, in two folders, and compare the bytes
	mkdir -p build
	$(one_build) $(call venv,wheels) scripts/check_reproducible.py build/reproducible

# A free-threaded Python cannot load the stable ABI of 3.11, so it needs a wheel of its own. With its C extension, google-crc32c
# would enable the GIL again.
FREE_THREADED_TESTS := $(addprefix tests/,kernels engine storage access kv zarr_plugin/test_pipeline.py zarr_plugin/test_group_writes.py)

.PHONY: free-threaded
free-threaded: .venv/wheels-$(VERSION)/stamp ## wheel for a free-threaded Python, tested with 16 threads: make PYTHON=python3.14t free-threaded
	mkdir -p dist/free-threaded build
	$(one_build) $(call venv,wheels) scripts/build_wheels.py dist/free-threaded
	CRC32C_PURE_PYTHON=1 $(call venv,wheels) $(pip_install) --force-reinstall --no-binary google-crc32c dist/free-threaded/*.whl
	$(call venv,wheels) $(pip_install) 'pytest>=9' pytest-asyncio hypothesis
	$(call venv,wheels) -P -W ignore -c 'import sys, shardcodec; shardcodec.enable(); assert not sys._is_gil_enabled(), "the GIL is enabled"'
	HYPOTHESIS_PROFILE=quick $(call pytest,wheels) -q -m 'not slow and not nightly' $(FREE_THREADED_TESTS)

# ThreadSanitizer knows the locks of a Python that is built with it: scripts/build-free-threaded PREFIX --with-thread-sanitizer.
$(eval $(call needed,races,))

.venv/races-$(VERSION)/stamp: .venv/races-$(VERSION)/needed
	CRC32C_PURE_PYTHON=1 $(call venv,races) $(pip_install) --force-reinstall --no-deps --no-binary google-crc32c google-crc32c
	$(call venv,races) $(pip_install) 'pytest>=9' pytest-asyncio hypothesis
	touch $@

RACE_TESTS ?= $(shell grep -lr 'mark.threads' tests --include='test_*.py')

.PHONY: tsan-free-threaded
tsan-free-threaded: build/special/tsan-$(VERSION)/stamp .venv/races-$(VERSION)/stamp ## tests of threads under ThreadSanitizer, with a Python that is built with it and without the GIL
	rm -rf build/races
	mkdir -p build/races
	TSAN_OPTIONS=die_after_fork=0:log_path='$(CURDIR)/build/races/report':suppressions='$(CURDIR)/tests/free_threaded.suppressions' \
	PYTHONPATH=$(call special,tsan) SHARDCODEC_TEST_SANITIZER=thread HYPOTHESIS_PROFILE=quick \
	  setarch -R env $(call pytest,races) -q -m threads -p no:xdist $(RACE_TESTS) || { cat build/races/report* 2>/dev/null; exit 1; }

# The parts that have their own code for ARM, or depend on the system: the emulator is ten times slower.
ARM_TESTS := $(addprefix tests/,kernels/test_crc32c.py kernels/test_index.py engine/test_codec_lz4.py engine/test_codec_zstd.py \
  engine/test_codec_gzip.py engine/test_codec_blosc.py zarr_plugin/test_pipeline.py storage/test_locks.py storage/test_file_locks.py)

.PHONY: wheels-in-roots
wheels-in-roots: dist/$(subst $() ,-,$(ARCHITECTURES)).stamp ## install the wheels in minimal systems: Debian sid (Python 3.14), and for aarch64 in qemu (root)
	$(if $(filter x86_64,$(ARCHITECTURES)),scripts/check-in-root sid amd64 dist/*_x86_64.whl $(WHEEL_ARGS))
	$(if $(filter aarch64,$(ARCHITECTURES)),scripts/check-in-root trixie arm64 dist/*_aarch64.whl --tests $(ARM_TESTS))

.PHONY: bare
bare: build/wheels/plain-$(WHEEL_VERSION)/stamp ## install the wheel of `make build` in an environment without a compiler and without an index
	'$(INTERPRETER)' scripts/check_wheel.py $(<D)/*.whl $(CHECK_ARGS)

# The tools of other package managers, without shardcodec.
$(eval $(call needed,recipes,recipes))

.PHONY: recipes debian
recipes: .venv/recipes-$(VERSION)/needed ## let the tools of conda and EasyBuild read the recipes in packaging/
	$(call venv,recipes) scripts/check_recipes.py

debian: .venv/build-$(VERSION)/stamp ## build packaging/debian from the sdist in Debian sid, and install it there (root)
	rm -rf build/debian
	mkdir -p build/debian
	$(one_build) $(call venv,build) setup.py --quiet sdist --dist-dir build/debian
	scripts/build-debian build/debian/*.tar.gz

# ---------------------------------------------------------------- using

.PHONY: demo
demo: .venv/demo-$(VERSION)/stamp ## a real MRI series through zarr, with and without shardcodec
	PYTHONSAFEPATH=1 $(call venv,demo) examples/demo.py

define install_zarrista
$(call venv,bench) -c 'import zarrista' 2>/dev/null || $(call venv,bench) $(pip_install) --no-deps zarrista \
  || echo 'zarrista cannot be installed here and is not measured'
endef

.PHONY: bench
bench: .venv/bench-$(VERSION)/stamp ## measure all peers in one run
	$(install_zarrista)
	$(call pytest,bench) bench -c bench/pytest.ini $(BENCH_ARGS)

.PHONY: bench-remote
bench-remote: .venv/bench-$(VERSION)/stamp ## reading over HTTP with latency: requests, bytes, seconds (needs nginx)
	$(call venv,bench) bench/remote.py $(BENCH_ARGS)

.PHONY: bench-second-epoch
bench-second-epoch: .venv/bench-$(VERSION)/stamp ## reading from S3 (moto) through the cache on a local disk, beside local files
	$(call venv,bench) bench/second_epoch.py $(BENCH_ARGS)

.PHONY: bench-object-writes
bench-object-writes: .venv/bench-$(VERSION)/stamp ## writing to S3 (moto) with latency: requests, bytes, seconds
	$(call venv,bench) bench/object_writes.py $(BENCH_ARGS)

.PHONY: bench-results
bench-results: .venv/bench-$(VERSION)/stamp ## measure what the tables of the pages need (twenty minutes), store it in bench/results, and update the pages
	$(install_zarrista)
	$(call venv,bench) bench/run.py --of-tables arrays --most-seconds 30 --json bench/results/arrays.json $(BENCH_ARGS)
	$(call venv,bench) bench/tables.py --write
	$(call venv,bench) scripts/pictures.py --charts

.PHONY: bench-again
bench-again: .venv/bench-$(VERSION)/stamp ## what a cache of decoded inner chunks saves (four minutes): store it in bench/results, and update the pages
	$(call venv,bench) bench/run.py --groups again --json bench/results/again.json $(BENCH_ARGS)
	$(call venv,bench) bench/tables.py --write

.PHONY: bench-scaling
bench-scaling: .venv/bench-$(VERSION)/stamp build/special/tsan-$(VERSION)/stamp ## how cost grows with cores, threads, size and shards (needs strace)
	$(call venv,bench) bench/scaling.py --json bench/results/scaling.json $(BENCH_ARGS)
	$(call venv,bench) bench/tables.py --write

# ---------------------------------------------------------------- the site

.PHONY: docs check-site
docs: .venv/docs-$(VERSION)/stamp ## the pages as a site, in build/site
	NO_MKDOCS_2_WARNING=1 PYTHONSAFEPATH=1 $(call venv,docs) -m mkdocs build --quiet --strict

check-site: docs ## look at each page of the site in Chromium, wide and narrow, and use the search
	$(call venv,docs) scripts/check_site.py build/site

# ---------------------------------------------------------------- testing

.PHONY: test
test: .venv/test-$(VERSION)/stamp ## the tests, with the same examples each time
	$(call pytest,test) -m '$(TIER)' $(TEST_ARGS) $(TESTS)

# The lower bounds of pyproject.toml, as exact versions.
.venv/oldest-$(VERSION)/stamp: build/wheels/plain-$(WHEEL_VERSION)/stamp | .venv/oldest-$(VERSION)/bin/python
	$(call venv,oldest) $(pip_install) --force-reinstall $(<D)/*.whl 'pytest>=9' pytest-asyncio pytest-xdist hypothesis \
	  $$($(call venv,oldest) -c 'import tomllib; made = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
	  print(*(need.replace(">=", "==") for need in made["dependencies"]))')
	touch $@

# It includes the command for packagers: no other package is installed.
OLDEST_TESTS := $(addprefix tests/,kernels engine format storage access zarr_plugin kv)

.PHONY: test-oldest
test-oldest: .venv/oldest-$(VERSION)/stamp ## the tests with the oldest numpy and zarr that pyproject.toml admits (Python 3.11)
	$(call pytest,oldest) -m 'not slow and not nightly' $(TEST_ARGS) $(OLDEST_TESTS)

# Seconds of readers beside writers, for each strategy on each mount; and arguments, such as --write-table or names of mounts.
NETWORK_SECONDS ?= 3
NETWORK_ARGS ?=

.PHONY: test-network
test-network: .venv/test-$(VERSION)/stamp ## every write strategy on every kind of mount (root); NETWORK_ARGS=--write-table updates docs/cluster.md
	PYTHONSAFEPATH=1 $(call venv,test) tests/mounts/network.py --seconds $(NETWORK_SECONDS) $(NETWORK_ARGS)

SEED ?= 1
SECONDS ?= 60
CRASH_ARGS ?=

.PHONY: crash-states
crash-states: .venv/test-$(VERSION)/stamp ## what a kill or a power cut may leave of each operation (docs/testing.md): make crash-states SEED=7 SECONDS=600
	PYTHONSAFEPATH=1 $(call venv,test) tests/faults/crash_states.py --seed $(SEED) --seconds $(SECONDS) $(CRASH_ARGS)

SCHEDULE_ARGS ?=

.PHONY: schedules
schedules: .venv/test-$(VERSION)/stamp ## writers, readers and tools on one shard, in many orders of their calls (docs/testing.md): make schedules SEED=7 SECONDS=600
	for program in schedule_run $(if $(SCHEDULE_ARGS),,async_schedules); do \
	  PYTHONSAFEPATH=1 $(call venv,test) tests/faults/$$program.py --seed $(SEED) --seconds $(SECONDS) $(SCHEDULE_ARGS); \
	done | awk '{ print; fflush() } /^[0-9]+ schedules$$/ { n += $$1 } END { print n " schedules" }'

KERNEL_ARGS ?=

.PHONY: test-kernel
test-kernel: .venv/test-$(VERSION)/stamp ## two clients of NFS in a real kernel, with cuts, restarts and deaths (root; docs/testing.md): make test-kernel SEED=7 SECONDS=600
	PYTHONSAFEPATH=1 $(call venv,test) tests/kernel/run.py --seed $(SEED) --seconds $(SECONDS) $(KERNEL_ARGS)

ASYNC_ARGS ?=

.PHONY: async-schedules
async-schedules: .venv/test-$(VERSION)/stamp ## the asynchronous side of it alone, on a virtual event loop: make async-schedules ASYNC_ARGS='--only random/1/17'
	PYTHONSAFEPATH=1 $(call venv,test) tests/faults/async_schedules.py --seed $(SEED) --seconds $(SECONDS) $(ASYNC_ARGS)

HISTORY_ARGS ?=

.PHONY: histories
histories: .venv/test-$(VERSION)/stamp ## record what writers and readers do while they are killed, and check it (docs/testing.md): make histories SEED=7 SECONDS=600
	PYTHONSAFEPATH=1 $(call venv,test) tests/faults/history_runs.py --seed $(SEED) --seconds $(SECONDS) $(HISTORY_ARGS)

.PHONY: live
live: .venv/test-$(VERSION)/stamp ## two writers and four readers of streams at the same time (docs/testing.md): make live SECONDS=600
	PYTHONSAFEPATH=1 $(call venv,test) tests/live_actors.py --seconds $(SECONDS)

# Tests that need no wheel, no root and no server, in the environment of `make dev`.
QUICK_TESTS := $(addprefix tests/,kernels engine format storage access kv test_project.py project/test_layers.py project/test_architecture.py)

.PHONY: quick
quick: dev check-python check-types check-c ## formats, lint, types and the fast tests of the checkout: under 3 minutes
	HYPOTHESIS_PROFILE=quick $(call pytest,dev) -m 'not slow and not nightly' $(TEST_ARGS) $(QUICK_TESTS)

.PHONY: nightly
nightly: ## everything: random examples, sanitizers on all folders, long fuzzing; some hours
	.ci/nightly

# The command in docs/packaging.md.
PACKAGER_TESTS := $(addprefix tests/,kernels engine storage kv)

.PHONY: test-system
test-system: build/special/system-$(VERSION)/stamp .venv/test-$(VERSION)/stamp ## test codecs and shards in a build with libzstd, liblz4 and zlib of the system
	PYTHONPATH=$(call special,system) $(call pytest,test) $(TEST_ARGS) -m 'not slow and not nightly' $(PACKAGER_TESTS)
	PYTHONPATH=$(call special,system) $(call pytest,test) $(TEST_ARGS) -k 'codec or whole' tests/access tests/zarr_plugin

.venv/suite-$(VERSION)/requirements.txt: .venv/suite-$(VERSION)/stamp
	$(call venv,suite) tests/zarr_suite/run.py --requirements > $@
	$(call venv,suite) $(pip_install) -r $@

.PHONY: zarr-suite
zarr-suite: .venv/suite-$(VERSION)/requirements.txt ## zarr-python's own tests, through our pipeline
	$(call venv,suite) tests/zarr_suite/run.py $(SUITE_ARGS)

without_engine = PYTHONPATH=$(call special,without-engine) $(call venv,$(1))

.PHONY: test-without-engine
test-without-engine: build/special/without-engine-$(VERSION)/stamp .venv/suite-$(VERSION)/requirements.txt .venv/xarray-$(VERSION)/requirements.txt ## tests of zarr and xarray, with the package for all platforms
	$(call without_engine,suite) tests/zarr_suite/run.py --without-engine $(SUITE_ARGS)
	$(call without_engine,xarray) tests/xarray_suite/run.py --way pipeline $(XARRAY_ARGS)

.venv/xarray-$(VERSION)/requirements.txt: .venv/xarray-$(VERSION)/stamp
	$(call venv,xarray) tests/xarray_suite/run.py --requirements > $@
	$(call venv,xarray) $(pip_install) -r $@

.PHONY: xarray-suite
xarray-suite: .venv/xarray-$(VERSION)/requirements.txt ## xarray's own Zarr tests, through our pipeline and without it
	$(call venv,xarray) tests/xarray_suite/run.py $(XARRAY_ARGS)

# The packages run their own tests with the newest zarr. ZARR=3.2.1 or ZARR=pre (the newest pre-release) runs the programs alone.
ZARR ?=
PACKAGE_ARGS ?=
packages := packages$(ZARR)
package_choice := $(if $(ZARR),--programs-only)
$(eval $(call environment,$(packages),))

.venv/$(packages)-$(VERSION)/requirements.txt: .venv/$(packages)-$(VERSION)/stamp
	$(call venv,$(packages)) tests/package_suites/run.py --requirements $(package_choice) > $@.new
	$(call venv,$(packages)) $(pip_install) -r $@.new
	$(if $(ZARR),$(call venv,$(packages)) $(pip_install) $(if $(filter pre,$(ZARR)),--pre --upgrade zarr,'zarr==$(ZARR)'))
	mv $@.new $@

.PHONY: package-suites
package-suites: .venv/$(packages)-$(VERSION)/requirements.txt ## tests and programs of anndata, ome-zarr, dask, icechunk, ..., with shardcodec and without
	PYTHONSAFEPATH=1 $(call venv,$(packages)) tests/package_suites/run.py $(package_choice) $(PACKAGE_ARGS)

C_FILES = $(shell find csrc tests bench -name '*.[ch]' ! -name '*_tables.h')
C_WARNINGS := -Wall -Wextra -Wshadow -Wconversion -Wstrict-prototypes -Wmissing-prototypes -Wvla -Werror

# $(call mend,what): the end of a check that fails: what repairs it
mend = || { echo "make $@: $(1)" >&2; exit 1; }

# `make -k check` continues after the first failure.
.PHONY: check check-python check-types check-c check-project
check: check-python check-types check-c check-project ## formatters, linters, types, C warnings, layers, symbols

check-python: .venv/dev-$(VERSION)/needed
	$(call venv,dev) -m ruff check $(call mend,'make format' repairs what ruff can repair; the rest is named above)
	$(call venv,dev) -m ruff format --check $(call mend,'make format' formats these files)

check-types: .venv/dev-$(VERSION)/needed
	$(call venv,dev) -m mypy $(call mend,correct the lines above; 'make check-types' checks types alone)

$(eval $(call environment,types,types))

.PHONY: check-public-types
check-public-types: .venv/types-$(VERSION)/stamp ## pyright: every public name has a type; pyright and mypy find the mistakes of users' programs
	cd "$$(mktemp -d)"; PATH='$(CURDIR)/.venv/types-$(VERSION)/bin':"$$PATH" pyright --verifytypes shardcodec --ignoreexternal
	$(call pytest,types) -q tests/project/test_types.py

check-c: .venv/dev-$(VERSION)/needed
	.venv/dev-$(VERSION)/bin/clang-format --dry-run --Werror $(C_FILES) $(call mend,'make format' formats these files)
	(for file in $$(find csrc -name '*.c'); do gcc -std=c11 -O2 -fsyntax-only $(C_WARNINGS) -Icsrc $$file || exit; done) \
	  $(call mend,correct the lines above; 'make check-c' checks C alone)

check-project: .venv/test-$(VERSION)/stamp
	$(call pytest,test) -q -m 'not slow' tests/test_project.py tests/project/test_layers.py \
	  $(call mend,correct what the failed assertions name; 'make check-project' checks this alone)

.PHONY: format
format: .venv/dev-$(VERSION)/needed ## repair what the formatters and linters of `make check` can repair
	$(call venv,dev) -m ruff check --fix-only
	$(call venv,dev) -m ruff format
	.venv/dev-$(VERSION)/bin/clang-format -i $(C_FILES)

.PHONY: tables
tables: dev ## write the generated tables: of codecs (docs/compatibility.md; needs the newest zarr), and of CRC-32C
	PYTHONSAFEPATH=1 $(call venv,dev) scripts/codec_table.py
	$(call venv,dev) csrc/kernels/gen_crc32c_tables.py > build/tables.h
	cmp -s build/tables.h csrc/kernels/sc_crc32c_tables.h || mv build/tables.h csrc/kernels/sc_crc32c_tables.h

# The sanitizers' libraries must come first in the process; libstdc++ with them, or a C++ exception thrown by
# TensorStore finds no interceptor. Tests that limit the address space read SHARDCODEC_TEST_SANITIZER and skip.
library = $(shell gcc -print-file-name=$(1))

# The folders whose tests reach C.
ASAN_TESTS ?= $(addprefix tests/,kernels engine storage access zarr_plugin kv property)

.PHONY: asan
asan: export ASAN_OPTIONS = detect_leaks=0:allocator_may_return_null=1:detect_stack_use_after_return=1
asan: export UBSAN_OPTIONS = print_stacktrace=1
asan: build/special/asan-$(VERSION)/stamp .venv/test-$(VERSION)/stamp ## the tests of C code, under AddressSanitizer and UBSan
	PYTHONPATH=$(call special,asan) SHARDCODEC_TEST_SANITIZER=address PYTHONMALLOC=malloc HYPOTHESIS_PROFILE=quick \
	LD_PRELOAD='$(call library,libasan.so) $(call library,libstdc++.so.6)' \
	  $(call pytest,test) -m 'not slow and not nightly' $(TEST_ARGS) $(ASAN_TESTS)

TSAN_TIER ?= threads

.PHONY: tsan
tsan: export TSAN_OPTIONS = ignore_noninstrumented_modules=1:halt_on_error=1:die_after_fork=0:suppressions='$(CURDIR)/tests/tsan.suppressions'
tsan: build/special/tsan-$(VERSION)/stamp .venv/test-$(VERSION)/stamp build/stress/pool build/stress/chunks ## thread pool, cache of inner chunks and engine under ThreadSanitizer
	setarch -R build/stress/pool
	setarch -R build/stress/chunks
	PYTHONPATH=$(call special,tsan) SHARDCODEC_TEST_SANITIZER=thread HYPOTHESIS_PROFILE=quick \
	LD_PRELOAD='$(call library,libtsan.so) $(call library,libstdc++.so.6)' \
	  setarch -R env $(call pytest,test) -m '$(TSAN_TIER)' -p no:xdist

build/stress/%: tests/stress/%.c $(filter csrc/%,$(SOURCES))
	mkdir -p $(@D)
	gcc -std=c11 -O1 -g -fsanitize=thread -pthread -Icsrc -o $@ $< csrc/base/sc_{pool,status,alloc}.c csrc/plan/sc_{chunks,kept_chunk}.c

# ---------------------------------------------------------------- fuzzing

# clang has libFuzzer, which uses coverage. Without clang our own driver mutates at random.
FUZZ_CC ?= $(shell command -v clang || echo gcc)
FUZZ_FLAGS := -std=c11 -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all -Icsrc -pthread
FUZZ_SOURCES := $(sort $(shell find csrc -name '*.c' ! -name 'test*'))
FUZZ_TARGETS := $(patsubst tests/fuzz/%.c,%,$(wildcard tests/fuzz/fuzz_*.c))

build/fuzz/libblosc2.a: .venv/build-$(VERSION)/stamp
	mkdir -p $(@D)
	ln -sf "$$(find "$$PWD/$(<D)/lib" -name libblosc2.a)" $@

FUZZ_OBJECTS := $(FUZZ_SOURCES:%.c=build/fuzz/%.o)

build/fuzz/%.o: %.c $(filter %.h,$(SOURCES))
	mkdir -p $(@D)
	$(FUZZ_CC) $(FUZZ_FLAGS) $(if $(findstring clang,$(FUZZ_CC)),-fsanitize=fuzzer-no-link) -c -o $@ $<

build/fuzz/fuzz_%: tests/fuzz/fuzz_%.c tests/fuzz/standalone.c $(FUZZ_OBJECTS) build/fuzz/libblosc2.a
	$(FUZZ_CC) $(FUZZ_FLAGS) -o $@ $< $(if $(findstring clang,$(FUZZ_CC)),-fsanitize=fuzzer,tests/fuzz/standalone.c) \
	  $(filter %.o %.a,$^) -ldl -lrt -lm

.PHONY: fuzz $(FUZZ_TARGETS:%=run-%)
fuzz: $(FUZZ_TARGETS:%=run-%) ## every fuzz target for FUZZ_SECONDS (20)

$(FUZZ_TARGETS:%=run-%): run-%: build/fuzz/%
	mkdir -p build/fuzz/corpus/$*
	build/fuzz/$* -max_total_time=$(FUZZ_SECONDS) -max_len=65536 -artifact_prefix=build/fuzz/$*- \
	  build/fuzz/corpus/$* $(wildcard tests/fuzz/corpus)

# ---------------------------------------------------------------- tidying

.PHONY: clean
clean: ## remove all files that the other commands made
	rm -rf .venv build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .benchmarks
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
