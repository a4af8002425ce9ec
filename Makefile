# Everything a fresh machine with python3, pip and make needs. `make help` lists the targets.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# One BLAS thread a process: chains and tests run in parallel processes.
export OPENBLAS_NUM_THREADS ?= 1
export OMP_NUM_THREADS ?= 1
export MKL_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: chromium help install demo test lint test-slow bench-sketch bench-sampler bench-default bench-cpu bench-gpu bench-growth bench-storage docs clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

$(VENV)/.created:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade pip
	@touch $@

$(VENV)/.installed: pyproject.toml $(VENV)/.created
	$(BIN)/python -m pip install -q -e '.'
	$(BIN)/python -m intarsia.server.sampler.precompile
	$(BIN)/python -c 'import intarsia.site.sketch.stream_compiled'
	@touch $@

$(VENV)/.tested: pyproject.toml $(VENV)/.installed
	$(BIN)/python -m pip install -q -e '.[dask,federation,gpu,lab,docs,test]'
	@touch $@

install: $(VENV)/.installed  ## make .venv and install intarsia in it

demo: $(VENV)/.installed  ## set up, then run a federated study of three simulated hospitals
	$(BIN)/intarsia demo --out demo-study

lint: $(VENV)/.tested  ## ruff and mypy
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/mypy

# The browser tests want Debian's Chromium; where it cannot be installed they are skipped and say so.
chromium:
	@command -v chromedriver >/dev/null || \
	  { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq && \
	    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium chromium-driver >/dev/null; } || \
	  echo "Chromium is not there and cannot be installed: the browser tests will be skipped"

test: $(VENV)/.tested chromium  ## set up, then lint, type-check and run the tests
	$(MAKE) --no-print-directory lint
	$(BIN)/python -m pytest

test-slow: $(VENV)/.tested  ## the long evidence
	$(BIN)/python -m pytest -m slow

bench-sketch: $(VENV)/.tested  ## sketching against a plain matrix product
	env -u OPENBLAS_NUM_THREADS -u OMP_NUM_THREADS -u MKL_NUM_THREADS $(BIN)/python -m benchmarks.sketch

bench-sampler: $(VENV)/.tested  ## the sampler against the paper's algorithm as its authors coded it
	$(BIN)/python -m benchmarks.sampler

bench-cpu: $(VENV)/.tested  ## one sweep at 100,000 features beside a bare DSYRK of its product
	$(BIN)/python -m benchmarks.cpu

bench-gpu: $(VENV)/.tested  ## the sampler on an accelerator, up to a million features
	$(BIN)/python -m benchmarks.gpu

bench-growth: $(VENV)/.tested  ## how time and memory grow with n, P, m, Q, and other methods beside
	$(BIN)/python -m benchmarks.growth

bench-storage: $(VENV)/.tested  ## sketching from disk and on Dask with 1 and 2 workers
	env -u OPENBLAS_NUM_THREADS -u OMP_NUM_THREADS -u MKL_NUM_THREADS $(BIN)/python -m benchmarks.storage

bench-default: $(VENV)/.tested  ## the default run on the paper's Simulation 2, every cell
	$(BIN)/python -m benchmarks.sim2

docs: $(VENV)/.tested  ## build the documents, strict links
	$(BIN)/mkdocs build --strict

clean:  ## remove the virtual environment and what the runs left
	rm -rf $(VENV) demo-study site-docs .pytest_cache .mypy_cache .ruff_cache
