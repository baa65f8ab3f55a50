# make study · make test · make check · make docs · make test-slow · make bench · make bench-coverage · make bench-calibrators
# make bench-losses · make bench-curvature · make bench-trees
# Everything is installed into .venv; torch first and exactly as pinned, so that no other package pulls another one.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
WORKERS ?= 2
# Oracles of the tests. Without their dependencies: one of them wants a torchvision that fits no CPU build of torch, and
# its mere presence breaks torchmetrics.
ORACLES := curvlinops-for-pytorch backpack-for-pytorch einconv einops unfoldNd pyhessian hessian-eigenthings==1.0.0a5

.PHONY: install study test test-slow check docs format bench bench-losses bench-coverage bench-calibrators bench-curvature bench-trees clean

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	@echo "making the environment $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@echo "installing $$(grep '^torch==' constraints.txt): the largest part, which can take minutes"
	@$(PIP) $$(grep '^torch==' constraints.txt)
	@echo "installing trueup and what its tests and checks need"
	@$(PIP) -e '.[dev]'
	@$(PIP) linear_operator opt_einsum tqdm
	@$(PIP) --no-deps $(ORACLES)
	@touch $@

# Every loss on the digits that come with scikit-learn, before and after calibration.
study: install
	$(BIN)/trueup study digits

test: install
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null || \
		echo "no Chromium: the page is not tested in a browser (apt-get install chromium)"
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(WORKERS) -m 'not slow'

test-slow: install
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(WORKERS) -m slow

check: install
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/pyright

# The site, in docs/_build; a warning is an error.
docs: install
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build
	@echo "docs/_build/index.html"

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

# torch-uncertainty comes alone: what it depends on would bring a torchvision built for another torch.
.venv-bench-losses/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-bench-losses
	.venv-bench-losses/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt $$(grep '^torch==' constraints.txt)
	.venv-bench-losses/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e . kornia monai
	.venv-bench-losses/bin/python -m pip install --quiet --disable-pip-version-check --no-deps torch-uncertainty
	touch $@

bench-losses: .venv-bench-losses/.installed
	.venv-bench-losses/bin/python -m benchmarks.losses

bench-coverage: install
	$(BIN)/python -m benchmarks.coverage

# TRUEUP_DATA names the folder that holds logits/.
bench-calibrators: install
	$(BIN)/python -m benchmarks.calibrators

bench-curvature: install
	$(BIN)/python -m benchmarks.curvature

# TRUEUP_DATA names the folder that holds data/.
bench-trees: install
	$(BIN)/python -m benchmarks.trees

clean:
	rm -rf $(VENV) .venv-bench .venv-bench-losses build dist .pytest_cache .ruff_cache
