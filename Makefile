# Every command of the project; CI and the commit hooks call these same targets.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet

NATIVE  := src/ropewalk/kernels/native
LIBRARY := $(NATIVE)/libropewalk.$(if $(filter Darwin,$(shell uname)),dylib,so)
NATIVE_SOURCES := build_native.py $(wildcard $(NATIVE)/*.c $(NATIVE)/*.h $(NATIVE)/*.inc)

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow check bench docs clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

setup: $(VENV)/installed $(LIBRARY) ## make .venv and install the project for development into it

demo: setup ## see the rotation's laws, its exactness and its speed, in the terminal and in one HTML page
	$(BIN)/ropewalk demo

check: setup ## formatting, lint, types, the order of the rooms, the public names
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/house/test_layers.py tests/house/test_public_names.py

test: check ## everything that CI runs: check, and the tests that are not slow
	$(BIN)/python -m pytest -m "not slow"

test-slow: setup ## the tests that take longer
	$(BIN)/python -m pytest -m slow

bench: $(VENV)/bench-installed setup ## time the rotation beside its peers and beside copy_
	$(BIN)/python -m benchmarks

docs: setup ## build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean: ## remove everything that these commands have made
	rm -rf $(VENV) build dist reports site .hypothesis .mypy_cache .pytest_cache .ruff_cache $(NATIVE)/libropewalk.*
	find src tests benchmarks -name __pycache__ -prune -exec rm -rf {} +

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || \
	  { echo "Ropewalk is developed on Python 3.11 to 3.13; choose one with make PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) install --constraint constraints.txt hatchling editables
	$(PIP) install --constraint constraints.txt --no-build-isolation --editable '.[dev]'
	@touch $@

# Without a compiler this makes nothing and says so, and is tried again at the next call.
$(LIBRARY): $(NATIVE_SOURCES) | $(VENV)/installed
	$(BIN)/python build_native.py

$(VENV)/bench-installed: $(VENV)/installed
	$(PIP) install --constraint constraints.txt --no-build-isolation --editable '.[bench]'
	@touch $@
