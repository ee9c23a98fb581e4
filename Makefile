# make check      linters, types, import contracts and the fast tests: before every commit
# make test       check, then every other test that is not slow: what CI runs
# make test-full  everything, the slow tests and the full matrices included
# make demo       trains CartPole and leaves its results in runs/
# make clean      removes what the tools leave behind (not .venv, not runs)
#
# JOBS=4 runs four tests at a time instead of two.

PYTHON ?= python3
JOBS ?= 2

VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet -c constraints.txt
CORE := $(VENV)/.core
INSTALLED := $(VENV)/.installed
BROWSER := $(VENV)/.browser

FAST_TESTS := $(wildcard tests/unit tests/properties tests/contracts)
NOT_LONG := not slow and not full

# Most tests run side by side. Those marked `alone` measure time or need all cores: they run one by one, afterwards.
PYTEST := $(BIN)/python -m pytest
SIDE_BY_SIDE := $(PYTEST) -n $(JOBS) --dist worksteal
NONE_IS_FINE := || [ $$? -eq 5 ]  # pytest's exit code when no test has the mark

.DEFAULT_GOAL := check
.PHONY: check lint test test-full demo clean

# What the demo needs: the package, its pictures and TensorBoard files. torch goes first, so that nothing installed after it can choose
# another build of it.
$(CORE): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) torch==2.13.0
	$(PIP_INSTALL) -e '.[plots,tensorboard]'
	touch $@

# What the tests need on top of that; Atari and MiniGrid are small, and guides, examples and tests use them.
$(INSTALLED): $(CORE) Makefile
	$(PIP_INSTALL) -e '.[test,dev,llm,plots,tensorboard,wandb,export,envpool,atari,minari,minigrid]'
	touch $@

# A browser for the tests of pages. Where Debian's package can't be had they are skipped, and say so.
$(BROWSER): $(CORE)
	command -v chromium >/dev/null || { timeout 300 apt-get update -qq && \
	    DEBIAN_FRONTEND=noninteractive timeout 600 apt-get install -y -qq --no-install-recommends chromium; } \
	    >/dev/null 2>&1 || echo "no chromium could be installed: the tests in tests/browser will be skipped"
	touch $@

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict src
	$(BIN)/lint-imports

check: lint
	$(SIDE_BY_SIDE) -m "$(NOT_LONG) and not alone" $(FAST_TESTS)
	$(PYTEST) -m "$(NOT_LONG) and alone" $(FAST_TESTS) $(NONE_IS_FINE)

# The fast directories ran in `check`; all else under tests/ runs here, so a new directory can't be forgotten.
test: check $(BROWSER)
	$(SIDE_BY_SIDE) -m "$(NOT_LONG) and not alone" --durations=15 tests $(FAST_TESTS:%=--ignore=%)
	$(PYTEST) -m "$(NOT_LONG) and alone" --durations=5 tests $(FAST_TESTS:%=--ignore=%) $(NONE_IS_FINE)

test-full: lint $(BROWSER)
	$(SIDE_BY_SIDE) -m "not alone" --durations=30 tests
	$(PYTEST) -m alone --durations=5 tests $(NONE_IS_FINE)

demo: $(CORE)
	$(BIN)/headrace train CartPole-v1 --config configs/cartpole.toml --run-dir runs/demo-$$(date +%Y%m%d-%H%M%S)

clean:
	rm -rf .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache build dist MUJOCO_LOG.TXT
	find src tests benchmarks examples -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
	find . -maxdepth 2 -name '*.egg-info' -prune -exec rm -rf {} +
