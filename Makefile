# Everything a fresh machine needs: `make demo` runs the main job, `make test` passes the tests.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# The release that headwise is developed with. Linux wheels may bring CUDA along;
# for a smaller install see https://pytorch.org/get-started.
TORCH ?= torch==2.13.0
# The demo's models are too small for several threads: two at a time are faster than one by one.
JOBS ?= $(shell test "$$(getconf _NPROCESSORS_ONLN)" -ge 2 && echo 2 || echo 1)
# What of `make nightly` is run: see tests/nightly.
ONLY ?= processes cluster tools floor newest long mutants

# Python compiles what is imported, once: to compile all at once would take longer than to install
# it. Where it is told to write nothing, each of many processes would compile anew.
unexport PYTHONDONTWRITEBYTECODE
PIP_INSTALL := bin/python -m pip install --quiet --disable-pip-version-check --no-compile
LOCK := build/lock/bin/uv pip compile --quiet --upgrade --config-file requirements/uv.toml --universal --python-version 3.11
PYTEST := $(BIN)/python -m pytest --numprocesses 2 --dist worksteal

.PHONY: install demo test quick nightly lint docs lock clean

install: $(VENV)/dev-installed  ## .venv with all that the tests and the docs need

# What the locks in requirements/ name, and no more: --no-deps. PyTorch stands in none of them.
$(VENV)/demo-installed: requirements/demo.txt pyproject.toml
	@echo "installing into $(VENV), which takes a minute or two"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "headwise needs Python 3.11 or a later one, and $(PYTHON) is %d.%d: make PYTHON=python3.12" % sys.version_info[:2])'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(VENV)/$(PIP_INSTALL) --no-deps --requirement requirements/demo.txt
	$(VENV)/$(PIP_INSTALL) "$(TORCH)"
	$(VENV)/$(PIP_INSTALL) --no-deps --no-build-isolation --editable .
	touch $@

$(VENV)/dev-installed: requirements/dev.txt requirements/speech.txt $(VENV)/demo-installed
	@echo "installing into $(VENV) what the tests and the docs need, which takes a minute or two"
	$(VENV)/$(PIP_INSTALL) --no-deps --requirement requirements/dev.txt
	$(VENV)/$(PIP_INSTALL) --no-deps --requirement requirements/speech.txt || echo "no PESQ: pip needs a C compiler to build it"
	touch $@

demo: $(VENV)/demo-installed  ## train and compare six systems, and test a claim on one; a report is written
	$(BIN)/headwise compare examples/tutorial/app.yaml --systems standard,weighted,agreement,mae-7,tim,moa --output runs/demo --jobs $(JOBS)
	@echo "claim W3: the weights that the Weighted Transformer has learned, and random ones"
	$(BIN)/headwise evaluate runs/demo/weighted-seed1 --ablate weighted=random --against runs/demo/weighted-seed1

test: install  ## the whole suite but for what takes a night
	$(PYTEST) -m "not nightly"

quick: lint  ## lint, and the tests that find most mistakes, in less than a minute
	$(PYTEST) --quiet -m "quick and not nightly" --hypothesis-profile quick tests

nightly: install  ## slow processes, Ray, tools of others, versions, random examples, mutants; ONLY=part
	PYTHON=$(PYTHON) tests/nightly $(VENV) "$(TORCH)" $(ONLY)

lint: install  ## ruff, import-linter and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo
	$(BIN)/mypy

docs: install  ## the site of documentation: start at build/docs/index.html
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet docs build/docs
	@echo "documentation: build/docs/index.html"

lock:  ## renews the locks in requirements/: what is installed here, in the newest versions
	$(PYTHON) -m venv build/lock
	build/lock/$(PIP_INSTALL) uv
	printf '%s\n' "$(TORCH)" setuptools | $(LOCK) --extra dev --extra tools pyproject.toml - --output-file requirements/tools.txt
	printf '%s\n' "$(TORCH)" setuptools | $(LOCK) --extra dev pyproject.toml - --constraint requirements/tools.txt --output-file requirements/dev.txt
	printf '%s\n' "$(TORCH)" setuptools | $(LOCK) --extra demo pyproject.toml - --constraint requirements/dev.txt --output-file requirements/demo.txt
	echo pesq | $(LOCK) --no-deps - --output-file requirements/speech.txt

clean:
	rm -rf $(VENV) $(VENV)-floor $(VENV)-newest runs build dist src/*.egg-info .coverage .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
