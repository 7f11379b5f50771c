# make tune SHAPE=4352,3840,3072,128    tune one problem        (ARGS="--trials 50 --json" for more)
# make test / make test-slow            pytest without / with the slow tests
# make check                            ruff, mypy
# make test-package                     the wheel, installed into empty environments
# make test-pages                       the four pages of the first hour, followed to the letter
# Each creates .venv by itself, and again when a requirement or pinned version changed.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help venv tune test test-slow test-package test-pages check format clean

VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
ARGS ?=
# A process per core, each with whole files: fixtures of a module compile kernels. tests/conftest.py orders the files.
SIDE_BY_SIDE := -n auto --dist loadfile --no-loadscope-reorder
# Images often forbid byte code. Then each of the hundreds of processes that tests start compiles all it imports.
test test-slow test-package test-pages: export PYTHONDONTWRITEBYTECODE :=

help:
	@sed -n 's/^# \{0,1\}//p' Makefile | head -6

venv: $(STAMP)

# PYTHON=... overrides the choice. 3.11 and 3.12 are the versions that results were made with.
$(STAMP): constraints.txt requirements.txt requirements-dev.txt
	@set -e; \
	good='import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))'; \
	python=; \
	for candidate in $(PYTHON) python3 python3.12 python3.11 python; do \
	  if "$$candidate" -c "$$good" 2>/dev/null; then python=$$candidate; break; fi; \
	done; \
	if [ -z "$$python" ]; then \
	  echo "error: Python 3.11 or 3.12 is needed, found $$(python3 --version 2>&1); use make PYTHON=/path/to/python3.12" >&2; \
	  exit 2; \
	fi; \
	if ! $(PY) -c "$$good" 2>/dev/null; then \
	  echo "creating $(VENV) with $$($$python --version)" >&2; \
	  if ! "$$python" -m venv --clear $(VENV) >&2; then \
	    rm -rf $(VENV); \
	    echo "error: $$python cannot create a virtual environment; install its venv module (python3-venv)" >&2; \
	    exit 2; \
	  fi; \
	fi; \
	echo "installing the pinned packages into $(VENV) (about 2 minutes the first time)" >&2; \
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -r requirements-dev.txt >&2; \
	touch $@

tune: $(STAMP)
	@if [ -z "$(SHAPE)" ]; then echo "error: say which problem: make tune SHAPE=M,K,N,R" >&2; exit 2; fi
	@$(PY) tune.py $(foreach shape,$(SHAPE),--shape $(shape)) $(ARGS)

test: $(STAMP)
	@$(PY) -m pytest -q $(SIDE_BY_SIDE) $(ARGS)

test-slow: $(STAMP)
	@$(PY) -m pytest -q $(SIDE_BY_SIDE) -m "not gpu" $(ARGS)

test-package: $(STAMP)
	@$(PY) -m pytest -q -m slow tests/package $(ARGS)

test-pages: $(STAMP)
	@$(PY) -m pytest -q -m "not gpu" tests/docs/test_first_hour.py $(ARGS)

check: $(STAMP)
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy

format: $(STAMP)
	@$(PY) -m ruff check --fix .
	@$(PY) -m ruff format .

clean:
	rm -rf .cache .pytest_cache .ruff_cache .mypy_cache
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
