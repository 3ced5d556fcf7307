# `make run` and `make test` do everything on a fresh machine with git, make and Python >= 3.11.

VENV ?= .venv
PYTHON ?=
JOBS ?= 2
BIN := $(VENV)/bin

.PHONY: help run test test-extended test-oldest harness lint format bench clean

help:
	@echo "make run          train the digits classifier on an emulated GC200 and report"
	@echo "make test         run all tests (JOBS=$(JOBS) at a time; ARGS='-k softmax' narrows them)"
	@echo "make test-extended the same and those that tests/extended.txt lists"
	@echo "make test-oldest  the same with the oldest supported versions"
	@echo "make harness      run all of JAX's own tests of its primitives beside jax.jit and write the table"
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

harness: $(VENV)/.installed-testing
	$(BIN)/python -m tests.harness --jobs=$(JOBS) --write $(ARGS)

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
	rm -rf .venv .venv-oldest .pytest_cache .ruff_cache .import_linter_cache .hypothesis
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
