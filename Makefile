# Everything a machine with python3, pip and make needs. `make help` lists the targets.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# The tested set of packages, with hashes, is used where it fits this Python and this package index; `make LOCKED=no …` leaves it out.
LOCKED ?= yes
# Processes that run the tests; the tests of one file stay together. Some mostly wait, so three keep two cores busy.
JOBS   ?= 3
CODE   := src tests experiments docs/reference
# One BLAS thread per process: chains and tests run in parallel processes.
export OPENBLAS_NUM_THREADS ?= 1
export OMP_NUM_THREADS ?= 1
export MKL_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: help install demo test vectors quick lint format test-slow faults oldest lock system-packages docs figures clean
.PHONY: bench-sketch bench-sampler bench-default bench-growth bench-storage bench-real bench-look-alikes bench-answer

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'

$(VENV)/.created:
	@echo "making a virtual environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -q --disable-pip-version-check --upgrade pip
	@touch $@

# $(call packages,LOCK FILE): the locked packages, or a line that says why not. pip downloads all of them before it installs the first,
# so that a lock which does not fit leaves the environment as it was; the installation after it then takes the ranges of pyproject.toml.
define packages
	@if [ "$(LOCKED)" = yes ]; then \
	  $(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r $(1) 2>$(VENV)/lock.log || \
	  echo "$(1) does not fit this Python or package index (why: $(VENV)/lock.log): taking the ranges of pyproject.toml"; fi
endef

$(VENV)/.installed: pyproject.toml requirements/run.txt $(VENV)/.created
	@echo "installing intarsia and the packages it needs (a minute or two)"
	$(call packages,requirements/run.txt)
	@$(BIN)/python -m pip install -q --disable-pip-version-check -e .
	@echo "compiling the loops of stream, sampler and diagnostics once (about a minute); they are kept on disk"
	@$(BIN)/python -c 'import intarsia.site.sketch.stream_compiled'
	@$(BIN)/python -m intarsia.server.sampler.precompile
	@touch $@

$(VENV)/.tested: pyproject.toml requirements/test.txt $(VENV)/.installed
	@echo "installing the packages the tests need (some minutes)"
	$(call packages,requirements/test.txt)
	@$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[dask,federation,lab,docs,test]'
	@touch $@

install: $(VENV)/.installed  ## make .venv and install intarsia in it

demo: $(VENV)/.installed  ## set up, then run a federated study of three simulated hospitals
	$(BIN)/intarsia demo --out demo-study

test: $(VENV)/.tested  ## set up, then lint, type-check and run the tests
	$(MAKE) --no-print-directory lint
	INTARSIA_ALL_EXTRAS=1 $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder

QUICK := $(addprefix tests/exact/test_,agreement.py align.py study.py stream.py selection.py conditionals.py leakage.py) \
  $(addprefix tests/contract/test_,boundary.py packaging.py quoted.py key.py messages.py table.py preflight.py study_folder.py report.py)
quick: $(VENV)/.tested  ## under a minute: lint, then exact and contract tests of what changes most
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/python -m pytest -x -n 2 --dist loadfile $(QUICK)

lint: $(VENV)/.tested  ## ruff (rules and format) and mypy
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy

format: $(VENV)/.tested  ## let ruff mend what it can
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)

# `make test` installs nothing outside of .venv; a test that misses one of these is skipped and names this target.
SYSTEM_PACKAGES := chromium chromium-driver postgresql strace $(R_PACKAGES)
system-packages:  ## Debian's Chromium, PostgreSQL and strace, which some tests drive (as root); R_PACKAGES names R's
	@[ "$$(id -u)" = 0 ] || { echo "installing system packages needs root: sudo make system-packages"; exit 1; }
	@command -v apt-get >/dev/null || { echo "no apt-get here: install by hand what Debian calls $(SYSTEM_PACKAGES)"; exit 1; }
	apt-get update -qq
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(SYSTEM_PACKAGES) >/dev/null

test-slow: $(VENV)/.tested  ## the long evidence, with new keys and examples; its outcome goes to experiments/results/slow.jsonl
	INTARSIA_EXPLORE=1 $(BIN)/python -m experiments.slow

faults: $(VENV)/.tested  ## kill, fill, stop and spoil every step of small studies, and measure large ones: tests/faults/last_run.json
	$(BIN)/python -m tests.faults
	$(BIN)/python -m tests.faults.over_network
	$(BIN)/python -m tests.faults.sizes

vectors: $(VENV)/.tested  ## write the protocol's test vectors anew, after a change of it that was meant
	$(BIN)/python -m tests.vectors

bench-sketch: $(VENV)/.tested  ## sketching against a plain matrix product
	env -u OPENBLAS_NUM_THREADS -u OMP_NUM_THREADS -u MKL_NUM_THREADS $(BIN)/python -m experiments.sketch

bench-sampler: $(VENV)/.tested  ## the horseshoe's sampler against the paper's algorithm as its authors coded it
	$(BIN)/python -m experiments.sampler

bench-growth: $(VENV)/.tested  ## how time and memory grow with n, P, m, Q, and other methods beside
	$(BIN)/python -m experiments.growth

bench-storage: $(VENV)/.tested  ## sketching from disk and on Dask with 1 and 2 workers
	env -u OPENBLAS_NUM_THREADS -u OMP_NUM_THREADS -u MKL_NUM_THREADS $(BIN)/python -m experiments.storage

bench-default: $(VENV)/.tested  ## the default run on the paper's Simulation 2, every cell
	$(BIN)/python -m experiments.sim2

bench-answer: $(VENV)/.tested  ## time from sketches to a converged answer at 20,000 features
	$(BIN)/python -m experiments.answer

bench-look-alikes: $(VENV)/.tested  ## prediction on simulated sets that look like public ones
	$(BIN)/python -m experiments.look_alikes

bench-real: $(VENV)/.tested  ## prediction on public data beside a ridge (INTARSIA_DATA names their folder)
	$(BIN)/python -m experiments.real

figures: $(VENV)/.tested  ## write the kept results' figures into the documents
	$(BIN)/python -m experiments.quoted_figures --write

docs: $(VENV)/.tested  ## build the documents, strict links
	$(BIN)/mkdocs build --strict

lock: $(VENV)/.tested  ## lock the newest packages that fit pyproject.toml, for Python 3.11 and later
	$(BIN)/python -m pip install -q uv
	$(COMPILE) pyproject.toml -o requirements/run.txt
	$(COMPILE) pyproject.toml --extra dask --extra federation --extra lab --extra docs --extra test -c requirements/run.txt \
	  -o requirements/test.txt
	$(COMPILE) pyproject.toml $(addprefix --extra ,$(DEPLOYED)) -c requirements/run.txt -c requirements/test.txt -o requirements/deploy.txt
# What the image of deploy/ holds beside the package's own needs.
DEPLOYED := federation postgresql sqlite duckdb zarr pgen bgen
COMPILE = $(BIN)/uv pip compile -q --upgrade --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url \
  --no-emit-find-links --no-annotate

# In an environment of its own, without the network engine, which brings requirements of its own. Every other range begins at what this installs.
oldest:  ## the exact and contract tests with the oldest packages that pyproject.toml allows
	$(PYTHON) -m venv $(VENV)-oldest
	$(VENV)-oldest/bin/python -m pip install -q uv
	$(VENV)-oldest/bin/uv pip install -q -p $(VENV)-oldest/bin/python --resolution lowest-direct -e '.[dask,lab,test]'
	$(VENV)-oldest/bin/python -m pytest tests/exact tests/contract

clean:  ## remove the virtual environment and what the runs left
	rm -rf $(VENV) $(VENV)-oldest demo-study site-docs .pytest_cache .mypy_cache .ruff_cache
