# `make demo` and `make test` need no setup: they create a virtual environment in .venv with the versions in constraints.txt.
PYTHON ?= python3
BIN := .venv/bin
unexport PYTHONDONTWRITEBYTECODE  # the tests start many processes; otherwise each would compile the package again
CORES := $(shell $(PYTHON) -c "import os; print(os.cpu_count() or 1)")
# If uv is installed, use it: it takes a sixth of the time. It does not read pip's variables, so they are passed on.
define install
if command -v uv >/dev/null 2>&1; \
then env UV_FIND_LINKS="$$PIP_FIND_LINKS" $${PIP_INDEX_URL:+UV_DEFAULT_INDEX="$$PIP_INDEX_URL"} uv pip install --quiet --python $(BIN)/python --constraints constraints.txt -e $(1); \
else $(BIN)/python -m pip install --quiet --constraint constraints.txt -e $(1); fi
endef

# HOOK=1 checks shapes and types at run time with jaxtyping and beartype, which is slower.
PYTEST = $(BIN)/python -m pytest -n $(CORES) --dist loadgroup --no-loadscope-reorder \
  $(if $(HOOK),--jaxtyping-packages=probmcl$(,)beartype.beartype)
, := ,

.PHONY: help demo test test-fast test-exhaustive fuzz check lint types doctest format clean

help:
	@echo "make demo             train and compare three methods on generated images (about 2 minutes)"
	@echo "make test             run the tests (about 5 minutes on two cores)"
	@echo "make test-fast        run the tests that do not train or start processes (about 100 seconds)"
	@echo "make test-exhaustive  test complete grids, exports and large networks"
	@echo "make fuzz             read 2,000 random tables, run folders and images each"
	@echo "make check            check lint, format, types and doctests, and run the tests with run-time type checks"
	@echo "make format           format the source code"

demo: .venv/installed
	$(BIN)/probmcl demo

test: .venv/installed-dev
	$(PYTEST) tests

test-fast: .venv/installed-dev
	$(PYTEST) -m "not exhaustive and not slow and not fuzz" tests

test-exhaustive: .venv/installed-dev
	$(PYTEST) --hypothesis-profile random -m exhaustive tests

fuzz: .venv/installed-dev
	$(PYTEST) --hypothesis-profile random -m fuzz tests

check: HOOK = 1
check: lint types doctest test

lint: .venv/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python tools/check_language.py

# The package is also checked for systems on which nothing was ever run. Each has a cache of its own.
types: .venv/installed-dev
	$(BIN)/mypy
	$(BIN)/mypy --platform win32 --cache-dir .mypy_cache/win32 src
	$(BIN)/mypy --platform darwin --cache-dir .mypy_cache/darwin src

doctest: .venv/installed-dev
	$(BIN)/python -m pytest -q --doctest-modules src

format: .venv/installed-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis

.venv/made:
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11))" \
	  || { echo "probmcl needs Python 3.11 or newer, but $(PYTHON) is $$($(PYTHON) --version); try make PYTHON=python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv .venv
	@touch $@

.venv/installed: .venv/made pyproject.toml constraints.txt
	@echo "installing probmcl and its dependencies into .venv (a minute or two) ..."
	@$(call install,.)
	@touch $@

.venv/installed-dev: .venv/made pyproject.toml constraints.txt
	@echo "installing probmcl, its dependencies and development tools into .venv (a minute or two) ..."
	@$(call install,'.[dev]')
	@touch $@
