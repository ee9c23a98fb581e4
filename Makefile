# make check      linters, types, import contracts and the fast tests: before every commit
# make test       check, then every other test that is not slow: what CI runs
# make test-full  everything, the slow tests and the full matrices included
# make demo       trains CartPole and leaves its results in runs/
# make clean      removes what the tools leave behind (not .venv, not runs)

PYTHON ?= python3

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

FAST_TESTS := $(wildcard tests/unit tests/properties tests/contracts)
NOT_LONG := -m "not slow and not full"

.DEFAULT_GOAL := check
.PHONY: check lint test test-full demo clean

# torch goes first, so that nothing installed after it can choose another build of it.
$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[test,dev,llm]'
	touch $@

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict src
	$(BIN)/lint-imports

check: lint
	$(BIN)/python -m pytest $(NOT_LONG) $(FAST_TESTS)

# The fast directories ran in `check`; whatever else is under tests/ runs here, so a new directory can't be forgotten.
test: check
	$(BIN)/python -m pytest $(NOT_LONG) --durations=15 tests $(FAST_TESTS:%=--ignore=%)

test-full: lint
	$(BIN)/python -m pytest --durations=30 tests

demo: $(INSTALLED)
	$(BIN)/headrace train CartPole-v1 --config configs/cartpole.toml --run-dir runs/demo-$$(date +%Y%m%d-%H%M%S)

clean:
	rm -rf .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache build dist
	find src tests benchmarks examples -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
	find . -maxdepth 2 -name '*.egg-info' -prune -exec rm -rf {} +
