# The two commands a newcomer needs: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# What is never imported need not be compiled.
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --no-compile

.PHONY: demo test test-all docs nightly release-check clean

demo: $(VENV)/.installed
	$(BIN)/cofem demo --out out

test: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	# Four workers share two cores, since some tests wait for processes of their own; threads of BLAS in each would
	# only wait for each other.
	OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 $(BIN)/pytest -q -n 4 --dist worksteal

# The same with PyTorch, pandas, PySINDy and MNE, whose tests `make test` skips where they are missing; none may be skipped.
test-all: $(VENV)/.installed-test
	$(INSTALL) --editable ".[test,test-all]"
	COFEM_REQUIRE_ALL=1 $(MAKE) test
	# scikit-learn's checks of array libraries ask for this; SciPy reads it when it is imported.
	SCIPY_ARRAY_API=1 $(BIN)/pytest -q tests/test_estimators.py -k array_api
	# Wheel and sdist, and the example of README.md with the wheel in an empty environment.
	$(INSTALL) build
	$(BIN)/python tests/release.py --wheel
	# `make docs` on a fresh clone, without running the examples, and what small extras are for, with nothing else there.
	$(BIN)/python -m tests.extras docs pylops nufft fast dask bench

# The site, in docs/_build/html; it runs the examples, and a warning is an error. `make test` builds it without running them.
docs: $(VENV)/.installed-docs
	OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 $(BIN)/sphinx-build -W --keep-going $(SPHINXOPTS) -b html docs docs/_build/html

# The whole suite with its slow tests, the property tests with twenty times as many cases, and how much of the code it
# runs; 2000 fits judged by exact formulas, and central lines broken on purpose; last, what a release must do.
nightly: $(VENV)/.installed-test
	$(INSTALL) --editable ".[test,test-all]"
	OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 COFEM_PROFILE=nightly COFEM_REQUIRE_ALL=1 \
		$(BIN)/pytest -q -n 4 --dist worksteal --cov --cov-report=term
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m tests.adversary 2000
	$(BIN)/python tests/mutations.py
	$(MAKE) release-check

# Wheel and sdist, built and installed into empty environments, where the example of README.md runs; every extra does what
# it is for in an environment of its own, and `make docs` on a fresh clone.
release-check: $(VENV)/.installed-test
	$(INSTALL) build
	$(BIN)/python tests/release.py
	$(BIN)/python -m tests.extras --gallery

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(VENV)/bin/python pyproject.toml
	$(INSTALL) --editable .
	touch $@

$(VENV)/.installed-test: $(VENV)/bin/python pyproject.toml
	$(INSTALL) --editable ".[test]"
	touch $@ $(VENV)/.installed

$(VENV)/.installed-docs: $(VENV)/bin/python pyproject.toml
	$(INSTALL) --editable ".[docs,examples]"
	touch $@ $(VENV)/.installed

clean:
	rm -rf $(VENV) out docs/_build docs/api docs/gallery .coverage .pytest_cache .mypy_cache .ruff_cache
