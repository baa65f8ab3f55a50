# make test · make check · make test-slow · make bench · make bench-coverage · make bench-calibrators
# Everything is installed into .venv; torch first and exactly as pinned, so that no other package pulls another one.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
WORKERS ?= 2

.PHONY: install test test-slow check format bench bench-coverage bench-calibrators clean

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) $$(grep '^torch==' constraints.txt)
	$(PIP) -e '.[dev]'
	touch $@

test: install
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(WORKERS) -m 'not slow'

test-slow: install
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(WORKERS) -m slow

check: install
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/pyright

format: install
	$(BIN)/ruff check --fix src tests benchmarks
	$(BIN)/ruff format src tests benchmarks

# The peers live in an environment of their own.
.venv-bench/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-bench
	.venv-bench/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt $$(grep '^torch==' constraints.txt)
	.venv-bench/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[all]' torchmetrics netcal numba probmetrics
	touch $@

bench: .venv-bench/.installed
	.venv-bench/bin/python -m benchmarks.peers

bench-coverage: install
	$(BIN)/python -m benchmarks.coverage

# TRUEUP_DATA names the folder that holds logits/.
bench-calibrators: install
	$(BIN)/python -m benchmarks.calibrators

clean:
	rm -rf $(VENV) .venv-bench build dist .pytest_cache .ruff_cache
