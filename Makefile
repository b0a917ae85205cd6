# make table  sets everything up and prints the bound table of InferMax's own experiment.
# make test   sets everything up and runs all checks and tests.
# make quick  sets everything up and runs the tests that take under a minute in all.
# make site   builds the pages of docs/ into build/site; open build/site/index.html.
# make cpu-tiny  measures a tiny transformer on this CPU, which should be idle, and fits the profile of that name.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: table test quick lint site cpu-tiny clean

table: $(VENV)/.installed
	@$(BIN)/optsched table infermax-fig15 --results results/infermax-fig15

test: $(VENV)/.installed-test lint
	$(BIN)/pytest -n 2 --dist loadfile

quick: $(VENV)/.installed-test
	$(BIN)/pytest -n 2 --dist loadfile -m 'not slow'

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

site: $(VENV)/.installed-test
	$(BIN)/sphinx-build -W --keep-going -q docs build/site

cpu-tiny: $(VENV)/.installed-test
	$(BIN)/optsched profile --shape tiny --out benchmarks/measurements/cpu-tiny
	$(BIN)/optsched calibrate benchmarks/measurements/cpu-tiny --name cpu-tiny --out optsched/calibrate/profiles/cpu-tiny.json

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "optsched needs Python >= 3.11; choose one with: make PYTHON=python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	$(BIN)/optsched compile
	@touch $@

$(VENV)/.installed-test: $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	$(BIN)/optsched compile
	@touch $@ $(VENV)/.installed

clean:
	rm -rf $(VENV) build dist results docs/generated .mypy_cache .pytest_cache .ruff_cache .hypothesis
