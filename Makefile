# `make demo` and `make test` make everything that they need; nothing but Python 3.11+ and make must be there.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
VENV := .venv
RUN := $(VENV)/bin/vq-console
# Engines, tools and models are large: they are made once, outside the checkout, keyed by their pins.
PREPARED := .make/prepared.json

.PHONY: help demo test check lowest soak engine screenshots bench clean

help:
	@echo 'make demo         two real vLLM servers of one model, compared: makes what it needs, ends with a verdict'
	@echo 'make test         all tests, those on the real CPU engine included'
	@echo 'make check        ruff, mypy --strict, import-linter'
	@echo 'make lowest       tests with the oldest versions of the libraries that are admitted'
	@echo 'make soak         repeats and simulations that take longer; resumable; results in tests/soak/'
	@echo 'make bench        the budgets of README.md as measurements; wants a quiet machine'
	@echo 'make screenshots  screenshots/ from the real program'
	@echo 'make clean        removes the environment and caches of this checkout'

$(VENV)/.user: pyproject.toml
	@test -n '$(PYTHON)' || { echo 'make: Python 3.11 or newer is needed; set PYTHON=/path/to/python3' >&2; exit 3; }
	@test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
		echo 'make: $(PYTHON) cannot make an environment; on Debian and Ubuntu: apt install python3-venv' >&2; exit 3; }
	@echo 'making the console (.venv) …' >&2
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -e . 2> >(grep -v '^WARNING' >&2 || true)
	@touch $@

$(VENV)/.dev: $(VENV)/.user
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -e '.[dev]' 2> >(grep -v '^WARNING' >&2 || true)
	@touch $@

demo: $(VENV)/.user
	@$(RUN) demo

engine: $(VENV)/.user
	@mkdir -p $(dir $(PREPARED))
	@$(RUN) demo --prepare --for-cpu --json >$(PREPARED).new && mv $(PREPARED).new $(PREPARED)

check: $(VENV)/.dev
	@$(VENV)/bin/ruff check tui tests
	@$(VENV)/bin/ruff format --check tui tests
	@MYPYPATH=tui $(VENV)/bin/mypy
	@$(VENV)/bin/lint-imports

# While the engine is made, what needs none, two at a time; then what needs it, and what measures time or stops servers.
test: export VQ_TEST_PREPARED = $(abspath $(PREPARED))
test: $(VENV)/.dev
	@$(MAKE) engine & engine=$$!; \
	$(VENV)/bin/python -m pytest -n 2 --dist worksteal -m beside $(PYTEST_ARGS) || [ $$? -eq 5 ] || { wait; exit 1; }; \
	wait $$engine
	@$(VENV)/bin/python -m pytest -m 'not soak and not beside' $(PYTEST_ARGS)

# The tests that need no engine, with the oldest versions that pyproject.toml admits.
lowest:
	@test -x .make/lowest/bin/uv || { $(PYTHON) -m venv .make/lowest && .make/lowest/bin/python -m pip install --quiet uv; }
	@.make/lowest/bin/uv pip install --quiet --python .make/lowest/bin/python --resolution lowest-direct -e '.[dev]'
	@.make/lowest/bin/python -m pytest -n 2 --dist worksteal -m beside $(PYTEST_ARGS)

soak: $(VENV)/.dev engine
	@VQ_TEST_PREPARED=$(abspath $(PREPARED)) $(VENV)/bin/python tests/soak/run.py $(SOAK_ARGS)

bench: $(VENV)/.dev
	@$(VENV)/bin/python tests/soak/run.py --again budgets

screenshots: $(VENV)/.dev
	@$(VENV)/bin/python screenshots/make.py

clean:
	rm -rf $(VENV) .make .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis dist
