# make table  sets everything up and prints the bound table of InferMax's own experiment.
# make test   sets everything up and runs all checks and tests.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: table test lint clean

table: $(VENV)/.installed
	@$(BIN)/optsched table infermax-fig15 --results results/infermax-fig15

test: $(VENV)/.installed-test lint
	$(BIN)/pytest -n 2 --dist loadfile

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "optsched needs Python >= 3.11; choose one with: make PYTHON=python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	@touch $@

$(VENV)/.installed-test: $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@ $(VENV)/.installed

clean:
	rm -rf $(VENV) build dist results .mypy_cache .pytest_cache .ruff_cache .hypothesis
