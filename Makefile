# `make run` and `make test` do everything on a fresh machine with git, make and Python >= 3.11.

VENV ?= .venv
PYTHON ?=
JOBS ?= 2
MINUTES ?= 30
SEED ?=
BIN := $(VENV)/bin

.PHONY: help run test test-extended test-oldest test-newest smoke-oldest smoke-newest harness sweep fuzz nightly lint format bench clean

help:
	@echo "make run          train the digits classifier on an emulated GC200 and report"
	@echo "make test         run the tests, of the longest one in eight (JOBS=$(JOBS) at a time; ARGS='-k softmax' narrows them)"
	@echo "make test-extended run all of them, those in full that tests/extended.txt lists"
	@echo "make test-oldest  the same with the oldest supported versions"
	@echo "make smoke-oldest a minute of them with those, in an environment that is removed again"
	@echo "make test-newest  the tests with the newest supported versions (Python 3.12 or newer)"
	@echo "make smoke-newest half a minute of them with those, in an environment that is removed again"
	@echo "make harness      run all of JAX's own tests of its primitives beside jax.jit and write the table"
	@echo "make sweep        run every case of JAX's public API beside jax.jit and write the table"
	@echo "make fuzz         draw programs, modules, executables and machines for MINUTES=$(MINUTES); SEED=N draws the same"
	@echo "make nightly      everything, one after another, however each ends; fuzzing for MINUTES"
	@echo "make lint         formatting, lints, types and import layers"
	@echo "make format       format and mend what ruff can mend"
	@echo "make bench        side-by-side ratios against jax.jit; estimates beside published silicon"
	@echo "make clean        remove the environments and caches"

run: $(VENV)/.installed
	$(BIN)/ipuxla run --flagfile=configs/experiments/digits.flags $(ARGS)

test: $(VENV)/.installed-testing
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -q $(ARGS)

test-extended: ARGS += --extended
test-extended: test

test-oldest:
	$(MAKE) test VENV=.venv-oldest CONSTRAINT=.ci/oldest.txt

test-newest:
	$(MAKE) test VENV=.venv-newest CONSTRAINT=.ci/newest.txt

# What a user meets first, what rests on NumPy's and hypothesis' names. NumPy 2.0 has no wheels for Python 3.13 and later.
SMOKE := tests/system/test_readme.py tests/system/test_tiles_only.py tests/system/test_api_compiled.py tests/golden \
  tests/unit/hlo_passes tests/unit/test_draws.py tests/unit/tiles/test_numerics_dtypes.py tests/property/test_hlo_text.py \
  tests/property/test_exchange.py
smoke-oldest:
	@for candidate in $(PYTHON) python3 python3.12 python3.11 python; do \
	  if "$$candidate" -c 'import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' >/dev/null 2>&1; then \
	    folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && \
	    $(MAKE) --no-print-directory test PYTHON="$$candidate" VENV="$$folder/venv" CONSTRAINT=.ci/oldest.txt ARGS="$(SMOKE)"; \
	    exit; \
	  fi; \
	done; \
	echo "smoke-oldest: left out, the oldest NumPy needs Python 3.11 or 3.12"

# What a user meets first, and what rests on names that JAX does not promise to keep: tracing, transformations, lowering,
# partitioning, scans in the ring. JAX 0.11 and later need Python 3.12; one of pyenv's will do.
SMOKE_NEWEST := tests/system/test_readme.py tests/system/test_api_compiled.py tests/system/test_api_transforms.py \
  tests/system/test_custom_partitioning.py tests/system/test_before_loops.py tests/unit/ipuxla/test_primitive.py
smoke-newest:
	@for candidate in $(PYTHON) python3 python3.14 python3.13 python3.12 python "$$HOME"/.pyenv/versions/3.1[2-9]*/bin/python; do \
	  if "$$candidate" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 12))' >/dev/null 2>&1; then \
	    folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && \
	    $(MAKE) --no-print-directory test PYTHON="$$candidate" VENV="$$folder/venv" CONSTRAINT=.ci/newest.txt ARGS="$(SMOKE_NEWEST)"; \
	    exit; \
	  fi; \
	done; \
	echo "smoke-newest: left out, the newest JAX needs Python 3.12 or newer"

harness: $(VENV)/.installed-testing
	$(BIN)/python -m tests.harness --jobs=$(JOBS) --write $(ARGS)

sweep: $(VENV)/.installed-testing
	$(BIN)/python -m tests.sweep --jobs=$(JOBS) --write $(ARGS)

# What it finds lies in .fuzz/failures as Python, and is tried again first the next time.
fuzz: $(VENV)/.installed-testing
	JAX_PLATFORMS=cpu $(BIN)/python -m tests.fuzz --minutes=$(MINUTES) --jobs=$(JOBS) $(if $(SEED),--seed=$(SEED)) $(ARGS)

# Hours. Everything runs even when something fails; what failed is named at the end.
NIGHTLY := lint test-extended harness sweep sweep-literal sweep-ring fuzz bench test-oldest smoke-newest
nightly:
	@failed=; for job in $(NIGHTLY); do echo "== $$job"; \
	  HYPOTHESIS_PROFILE=explore HYPOTHESIS_EXAMPLES=100 $(MAKE) --no-print-directory $$job || failed="$$failed $$job"; \
	done; echo "failed:$${failed:- nothing}"; test -z "$$failed"

.PHONY: sweep-literal sweep-ring
sweep-literal sweep-ring: $(VENV)/.installed-testing
	$(BIN)/python -m tests.sweep --jobs=$(JOBS) --engine=literal $(if $(findstring ring,$@),--arithmetic=ring)

# All four run even when one fails: a developer wants the whole list.
lint: $(VENV)/.installed-dev
	@status=0; for tool in "ruff format --check" "ruff check" "pyright --pythonpath $(BIN)/python" "lint-imports"; do \
	  echo "== $$tool"; $(BIN)/$$tool || status=1; \
	done; exit $$status

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(VENV)/.installed
	$(BIN)/python -m benchmarks.mlp
	$(BIN)/python -m benchmarks.compile
	$(BIN)/python -m benchmarks.everyday $(ARGS)
	$(BIN)/python -m benchmarks.silicon
	$(BIN)/python -m benchmarks.calibration
	$(BIN)/python -m benchmarks.plans
	$(BIN)/python -m benchmarks.tile_code
	$(BIN)/python -m benchmarks.models

clean:
	rm -rf .venv .venv-oldest .venv-newest .pytest_cache .ruff_cache .import_linter_cache .hypothesis .fuzz
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +

# ---- environments: each stamp says that an install of today's pyproject.toml succeeded

PIP_INSTALL = $(BIN)/python -m pip install --disable-pip-version-check -q $(if $(CONSTRAINT),-c $(CONSTRAINT))

$(BIN)/python:
	@for candidate in $(PYTHON) python3 python3.13 python3.12 python3.11 python3.14 python; do \
	  if "$$candidate" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
	    echo "making $(VENV) with $$("$$candidate" --version)"; \
	    "$$candidate" -m venv $(VENV) && exit 0; \
	  fi; \
	done; \
	echo "error: found no Python >= 3.11 with venv; install one, or name it: make PYTHON=/path/to/python3" >&2; exit 1

$(VENV)/.installed: pyproject.toml | $(BIN)/python
	$(PIP_INSTALL) -e .
	@touch $@

$(VENV)/.installed-testing: $(VENV)/.installed
	$(PIP_INSTALL) -e '.[testing]'
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed-testing
	$(PIP_INSTALL) -e '.[dev]'
	@touch $@
