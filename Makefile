# `make demo` and `make test` need only python3 (3.11 or newer), make and a package index.
# PYTHON=python3.12 make test    uses another interpreter, in an environment of its own.

PYTHON ?= python3
JOBS ?= 2

PYTHON_VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
ifeq ($(PYTHON),python3)
VENV := .venv
else
VENV := .venv-$(PYTHON_VERSION)
endif
BIN := $(VENV)/bin

.PHONY: help environment demo demo-distributed gpt test test-all test-floor downstream fuzz mutants check format \
	conformance bench bench-pages bench-minimize board docs dist wheel-test changelog clean

help:
	@echo 'make demo         train a network on handwritten digits and watch it learn'
	@echo 'make demo-distributed  the same in two processes; kill one, and go on'
	@echo 'make gpt          train a small GPT, by Muon and by AdamW, in a few minutes'
	@echo 'make test         run the tests, in four minutes; ROOM=checkpoint for some'
	@echo 'make test-all     run all cases of all tests; ROOM=checkpoint, PART=3/32'
	@echo 'make test-floor   run a sample of the tests on the oldest JAX; JAX=0.9.2 or nightly'
	@echo 'make downstream   run the tests of libraries that use Optax on Stepax'
	@echo 'make fuzz         run random programs beside Optax; SEED=7 EXAMPLES=500'
	@echo 'make mutants      plant 100 faults, and see which of them make test finds'
	@echo 'make check        formatting, lint, types, and tests of prose and tools'
	@echo 'make format       put the code into its form'
	@echo 'make conformance  compare with Optax by its own tests (needs ../shared)'
	@echo 'make bench        measure steps beside Optax and PyTorch, in half an hour'
	@echo 'make bench-pages  write docs/bench.md and its picture from the files of runs'
	@echo 'make bench-minimize  compare with other libraries on 109 functions'
	@echo 'make board        run what the leaderboard lacks, in two hours; ARGS=--pages'
	@echo 'make docs         build the documentation site, and serve it'
	@echo 'make wheel-test   build the wheel, and run the first program of the README on it'
	@echo 'make changelog    assemble a section of CHANGELOG.md from changelog.d'
	@echo 'make clean        remove environments and caches'

demo: $(VENV)/demo.stamp
	@$(BIN)/python -m examples.demo $(ARGS)

demo-distributed: $(VENV)/distributed.stamp
	@$(BIN)/python examples/distributed_digits.py $(ARGS)

gpt: $(VENV)/gpt.stamp
	@$(BIN)/python -m examples.gpt $(ARGS)

# Python keeps what it compiles, of which tests begin many processes.
export PYTHONDONTWRITEBYTECODE =

# ROOM names folders of `tests`; PART=3/32 is the third of 32 parts of all cases.
test: $(VENV)/test.stamp
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(addprefix tests/,$(ROOM)) $(ARGS)

test-all: export STEPAX_TESTS = $(or $(PART),all)
test-all: test

# In an environment of its own; what another version of JAX could break.
JAX ?= $(shell sed -n 's/^dependencies = \["jax>=\([0-9.]*\)".*/\1/p' pyproject.toml).*
FLOOR_TESTS := $(addprefix tests/,engine/test_every_factory.py engine/test_export.py \
	engine/test_packed.py engine/test_step.py checkpoint/test_checkpoint.py \
	distributed/test_distributed.py distributed/test_makers_agree.py \
	wrappers/test_wrappers.py optimizers/test_same_as_optax.py solve/equations \
	solve/minimize/test_minimize.py package/test_releases.py)

# `JAX=nightly` comes from the index that JAX's documentation names, after all others.
NIGHTLY := https://us-python.pkg.dev/ml-oss-artifacts-published/jax/simple/
is_nightly = $(filter nightly,$(JAX))

# JAX warns of what other libraries import of it.
test-floor: $(MADE)
	$(PYTHON) -m venv --clear .venv-floor
	@echo '*' > .venv-floor/.gitignore
	.venv-floor/bin/pip install --quiet '$(PIP)'
	.venv-floor/bin/pip install --quiet -e '.[checkpoint]' --group demo --group test \
		$(if $(is_nightly),jax,'jax==$(JAX)' 'jaxlib==$(JAX)')
	$(if $(is_nightly),.venv-floor/bin/pip install --quiet --upgrade --pre -i $(NIGHTLY) \
		jax jaxlib)
	.venv-floor/bin/python -m pytest -n $(JOBS) -W 'ignore:jax.core:DeprecationWarning' \
		$(FLOOR_TESTS) $(ARGS)

# What `.ci/run` installs, before parts of it run side by side.
environment: $(VENV)/test.stamp $(VENV)/docs.stamp

downstream: $(VENV)/test.stamp
	$(BIN)/python -m benchmarks.downstream $(ARGS)

EXAMPLES ?= 5000
SEED ?= $(shell $(PYTHON) -c 'import random; print(random.randrange(2**31))')

fuzz: $(VENV)/test.stamp
	@seed=$(SEED); echo "make fuzz SEED=$$seed EXAMPLES=$(EXAMPLES)"; \
	STEPAX_TESTS=all STEPAX_FUZZ_SEED=$$seed STEPAX_FUZZ_EXAMPLES=$(EXAMPLES) \
	$(BIN)/python -m pytest -n $(JOBS) -v tests/*/test_fuzz_*.py $(ARGS)

mutants: $(VENV)/test.stamp
	@$(BIN)/python -m benchmarks.mutants --jobs $(JOBS) $(ARGS)

# Beside form and types, the tests that guard prose, packaging and our own tools.
check: $(VENV)/test.stamp
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright --project pyproject.toml --pythonpath $(BIN)/python
	STEPAX_TESTS=project $(BIN)/python -m pytest -n $(JOBS) --dist worksteal \
		tests/project $$(grep -rl --include='test_*.py' 'mark\.project$$' tests)

format: $(VENV)/test.stamp
	$(BIN)/python -m benchmarks.exports
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

conformance: $(VENV)/test.stamp
	.ci/conformance $(BIN)/python $(JOBS) $(ARGS)

bench: $(VENV)/bench.stamp
	$(BIN)/python -m benchmarks.bench $(ARGS)

bench-pages: $(VENV)/bench.stamp
	$(BIN)/python -m website.tables.bench_pages

bench-minimize: $(VENV)/bench.stamp
	$(BIN)/python -m studies.minimize --png .cache/minimize.png $(ARGS)

# ARGS=--check builds it and checks it; CHROMIUM=/path names the browser.
docs: $(VENV)/docs.stamp
	@$(BIN)/python -m website $(ARGS)

board: $(VENV)/board.stamp
	@$(BIN)/python -m benchmarks.board $(ARGS)

dist: $(VENV)/release.stamp
	rm -rf dist
	$(BIN)/python -m build

# In an environment of its own, where nothing else is installed; TAG=v0.1.0 must fit.
wheel-test: dist
	$(BIN)/python .ci/wheel.py dist/*.whl $(if $(TAG),--tag '$(TAG)') --run README.md

VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)

# ARGS=--draft shows the section and changes nothing.
changelog: $(VENV)/release.stamp
	$(BIN)/towncrier build --yes --version $(VERSION) $(ARGS)

clean:
	rm -rf .venv .venv-* .cache .pytest_cache .ruff_cache .hypothesis build dist

# The stamp names the version: `.venv` is rebuilt when python3 becomes another one.
MADE := $(VENV)/python-$(PYTHON_VERSION).stamp

$(MADE):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
	  "stepax needs Python 3.11 or newer; name one: PYTHON=python3.12 make ...")'
	$(PYTHON) -m venv --clear $(VENV)
	@echo '*' > $(VENV)/.gitignore
	@touch $@

# uv installs several times as fast as pip, which does it where uv cannot, as soon as it
# is new enough to know dependency groups.
UV := uv==0.13.9
PIP := pip>=25.1
install = { $(BIN)/pip install --quiet $(UV) && \
	$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python $(1); } || \
	{ $(BIN)/pip install --quiet '$(PIP)' && $(BIN)/pip install --quiet $(1); }

DEMO := -e . --group demo
DISTRIBUTED := -e '.[checkpoint]' --group demo
GPT := $(DISTRIBUTED) --group gpt
TEST := $(DISTRIBUTED) --group dev --group test
BENCH := $(DEMO) --group bench
DOCS := $(DEMO) --group docs
BOARD := $(DEMO) --group board
RELEASE := --group release

$(VENV)/demo.stamp: $(MADE) pyproject.toml
	@echo 'installing what the demonstration needs into $(VENV)'
	@$(call install,$(DEMO))
	@touch $@

$(VENV)/distributed.stamp: $(MADE) pyproject.toml
	@echo 'installing what the processes need into $(VENV)'
	@$(call install,$(DISTRIBUTED))
	@touch $@

$(VENV)/gpt.stamp: $(MADE) pyproject.toml
	@echo 'installing what the GPT needs into $(VENV)'
	@$(call install,$(GPT))
	@touch $@

# PyTorch is an oracle where pip knows a local wheel, as an index brings gigabytes with it.
local_torch = $$($(BIN)/pip install --quiet --no-index --no-deps torch 2>/dev/null && \
	echo --group torch)

$(VENV)/test.stamp: $(MADE) pyproject.toml
	@echo 'installing what the tests need into $(VENV), a minute or more'
	@torch=$(local_torch); $(call install,$(TEST) $$torch)
	@touch $@

$(VENV)/bench.stamp: $(MADE) pyproject.toml
	@echo 'installing what the benchmark needs into $(VENV), a minute or more'
	@torch=$(local_torch); $(call install,$(BENCH) $$torch)
	@touch $@

$(VENV)/docs.stamp: $(MADE) pyproject.toml
	@echo 'installing what the documentation needs into $(VENV), a minute or more'
	@$(call install,$(DOCS))
	@touch $@

$(VENV)/board.stamp: $(MADE) pyproject.toml
	@echo 'installing what the leaderboard needs into $(VENV)'
	@$(call install,$(BOARD))
	@touch $@

$(VENV)/release.stamp: $(MADE) pyproject.toml
	@echo 'installing what a release needs into $(VENV)'
	@$(call install,$(RELEASE))
	@touch $@
