# The first Python of at least 3.11 on the PATH; name another with `make PYTHON=/path/to/python test`.
PYTHON ?= $(shell for candidate in python3 python3.13 python3.12 python3.11 python3.14; do \
	$$candidate -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$candidate; break; }; done)

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
INSTALLED_TEST := $(VENV)/.installed-test

.PHONY: demo test test-full kernels lint format clean

demo: $(INSTALLED)
	$(BIN)/flexspec demo --json demo.json

test: $(INSTALLED_TEST)
	$(BIN)/python -m pytest

test-full: $(INSTALLED_TEST)
	$(BIN)/python -m pytest -m ""

# Compiles the GPU kernels for every GPU, on a machine that needs none, and writes docs/kernels.md.
kernels: $(INSTALLED)
	$(BIN)/python -m flexspec.codegen.cuda.report

lint: $(INSTALLED_TEST)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(INSTALLED_TEST)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build demo.json *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis

# pip is the last thing that venv writes, so an interrupted one is made again.
$(BIN)/pip:
	@test -n "$(PYTHON)" || { echo "flexspec needs Python 3.11 or later: install one, or run make PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(INSTALLED): pyproject.toml | $(BIN)/pip
	$(BIN)/python -m pip install --editable .
	touch $@

$(INSTALLED_TEST): pyproject.toml | $(BIN)/pip
	$(BIN)/python -m pip install --editable '.[test]'
	touch $(INSTALLED) $@
