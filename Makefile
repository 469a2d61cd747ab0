# Everything a fresh machine needs: `make demo` runs the main job, `make test` passes the tests.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# The release that headwise is developed with. Linux wheels may bring CUDA along;
# for a smaller install see https://pytorch.org/get-started.
TORCH ?= torch==2.13.0
# The lowest release that headwise is tried with.
TORCH_FLOOR := torch==2.8.0
# The demo's models are too small for several threads: two at a time are faster than one by one.
JOBS ?= $(shell test "$$(getconf _NPROCESSORS_ONLN)" -ge 2 && echo 2 || echo 1)

# How long `make fuzz` tries.
FUZZ_MINUTES ?= 10

# Python compiles what is imported, once: to compile all at once would take longer than to install
# it. Where it is told to write nothing, each of many processes would compile anew.
unexport PYTHONDONTWRITEBYTECODE
PIP_INSTALL := bin/python -m pip install --quiet --disable-pip-version-check --no-compile
LOCK := build/lock/bin/uv pip compile --quiet --upgrade --config-file requirements/uv.toml
# Neighbours share what is trained for them, and so a process.
PYTEST := $(BIN)/python -m pytest --numprocesses 2 --dist worksteal
# What `make test-floor` and `make test-newest` run. The list comes first: behind the others, the
# lowest pytest leaves them out.
TESTS_OF_VERSIONS := @tests/quick.txt tests/test_transformers_internals.py tests/compatibility

.PHONY: install demo test test-slow test-cluster coverage test-quick test-wheel test-floor test-newest lock fuzz lint bench docs clean

install: $(VENV)/dev-installed  ## .venv with all that the tests and the docs need

# What the locks in requirements/ name, and no more: --no-deps. PyTorch stands in none of them.
$(VENV)/demo-installed: requirements/demo.txt pyproject.toml
	@echo "installing into $(VENV), which takes a minute or two"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "headwise needs Python 3.10 or a later one, and $(PYTHON) is %d.%d: make PYTHON=python3.12" % sys.version_info[:2])'
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

demo: $(VENV)/demo-installed  ## train and compare all six systems, and test a claim on one; a report is written
	$(BIN)/headwise compare --output runs/demo --set training.max_steps=600 --jobs $(JOBS)
	@echo "claim W3: the weights that the Weighted Transformer has learned, and random ones"
	$(BIN)/headwise evaluate runs/demo/weighted-seed1 --ablate weighted=random --against runs/demo/weighted-seed1

test: install  ## the tests, but for those that take seconds each
	$(PYTEST) -m "not slow"

test-slow: install  ## those: inductor, ONNX, processes that are killed, random examples
	$(PYTEST) -m "slow and not cluster" $$(grep --recursive --files-with-matches mark.slow tests --include "test_*.py") tests/fuzz

test-cluster: install  ## those that start a Ray cluster on this machine, five minutes
	$(BIN)/python -m pytest -m cluster tests/runs/test_cluster.py

coverage: install  ## all tests, and the lines that none of them runs
	$(PYTEST) --cov=headwise --cov-report=term-missing:skip-covered

test-quick: install  ## those tests that find most mistakes, in well under a minute
	$(PYTEST) --quiet @tests/quick.txt

test-wheel: install  ## builds the wheel, and uses it in an empty environment
	tests/wheel.sh $(BIN)/python "$(TORCH)"

# The lowest versions that pyproject.toml allows, which have no wheels for the newest Python.
test-floor:  ## some of the tests with the lowest versions that headwise allows, on Python 3.11
	rm -rf $(VENV)-floor
	python3.11 -m venv $(VENV)-floor
	$(VENV)-floor/$(PIP_INSTALL) --no-deps --requirement requirements/floor.txt
	$(VENV)-floor/$(PIP_INSTALL) "$(TORCH_FLOOR)"
	$(VENV)-floor/$(PIP_INSTALL) --no-deps --no-build-isolation --editable .
	$(VENV)-floor/bin/python -m pytest --numprocesses 2 --quiet $(TESTS_OF_VERSIONS)

test-newest:  ## the same with the newest versions that there are
	rm -rf $(VENV)-newest
	$(PYTHON) -m venv $(VENV)-newest
	$(VENV)-newest/$(PIP_INSTALL) "$(TORCH)"
	$(VENV)-newest/$(PIP_INSTALL) --editable ".[dev]"
	$(VENV)-newest/bin/python -m pytest --numprocesses 2 --quiet $(TESTS_OF_VERSIONS)

lock:  ## renews the locks in requirements/: what is installed here, in the newest versions
	$(PYTHON) -m venv build/lock
	build/lock/$(PIP_INSTALL) uv
	printf '%s\n' "$(TORCH)" setuptools | $(LOCK) --universal --python-version 3.10 \
		--extra dev pyproject.toml - --output-file requirements/dev.txt
	printf '%s\n' "$(TORCH)" setuptools | $(LOCK) --universal --python-version 3.10 \
		--extra demo pyproject.toml - --constraint requirements/dev.txt --output-file requirements/demo.txt
	echo pesq | $(LOCK) --universal --python-version 3.10 --no-deps - --output-file requirements/speech.txt
	echo "fsspec<=2025.3" > build/lock/constraints.txt  # the datasets of the floor take no later one
	printf '%s\n' "$(TORCH_FLOOR)" "setuptools>=77" | $(LOCK) --resolution lowest-direct --python-version 3.11 \
		--constraint build/lock/constraints.txt --extra dev pyproject.toml - --output-file requirements/floor.txt

fuzz: install  ## tries what nobody thought of for ten minutes: see docs/practice.md
	timeout --signal=INT $(FUZZ_MINUTES)m sh -c 'while HEADWISE_FUZZ=long $(BIN)/python -m pytest \
		-p no:xdist --hypothesis-show-statistics $$(ls tests/fuzz/test_*.py | shuf); do :; done'; \
		test $$? -eq 124

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: install  ## speed beside nn.MultiheadAttention, and of whole layers
	$(BIN)/python benchmarks/attention.py
	$(BIN)/python benchmarks/layers.py

docs: docs/claims.md | install  ## the site of documentation: start at build/docs/index.html
	$(BIN)/headwise keys --markdown > docs/keys.md
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet docs build/docs
	@echo "documentation: build/docs/index.html"

# Takes some minutes: models are trained for three steps to tell whether results are stale.
docs/claims.md: $(shell find evidence -type f -not -name "*.pyc") | install
	$(BIN)/python -m evidence page

clean:
	rm -rf $(VENV) $(VENV)-floor $(VENV)-newest runs build dist src/*.egg-info .coverage .pytest_cache .mypy_cache .ruff_cache
	rm -rf docs/keys.md docs/claims.md docs/claims
