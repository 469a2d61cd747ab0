# Everything a fresh machine needs: `make demo` runs the main job, `make test` passes the tests.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# The release that headwise is developed with. Linux wheels may bring CUDA along;
# for a smaller install see https://pytorch.org/get-started.
TORCH ?= torch==2.13.0
# The demo's models are too small for several threads: two at a time are faster than one by one.
JOBS ?= $(shell test "$$(getconf _NPROCESSORS_ONLN)" -ge 2 && echo 2 || echo 1)

# How long `make fuzz` tries.
FUZZ_MINUTES ?= 10

.PHONY: install demo test coverage test-quick test-wheel fuzz lint bench docs clean

install: $(VENV)/installed

$(VENV)/installed: pyproject.toml
	@echo "installing into $(VENV), which takes some minutes"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet "$(TORCH)"
	$(BIN)/pip install --quiet --editable ".[dev]"
	$(BIN)/pip install --quiet --editable ".[speech]" || echo "no PESQ: pip needs a C compiler to build it"
	touch $@

demo: install  ## train and compare all six systems, and test a claim on one; a report is written
	$(BIN)/headwise compare --output runs/demo --set training.max_steps=600 --jobs $(JOBS)
	@echo "claim W3: the weights that the Weighted Transformer has learned, and equal ones"
	$(BIN)/headwise evaluate runs/demo/weighted-seed1 --ablate weighted=uniform --against runs/demo/weighted-seed1

test: install  ## the whole test suite
	$(BIN)/python -m pytest --numprocesses 2

coverage: install  ## the same, and the lines that no test runs
	$(BIN)/python -m pytest --numprocesses 2 --cov=headwise --cov-report=term-missing:skip-covered

test-quick: install  ## those tests that find most mistakes, in well under a minute
	$(BIN)/python -m pytest --numprocesses 2 --quiet @tests/quick.txt

test-wheel: install  ## builds the wheel, and uses it in an empty environment
	tests/wheel.sh $(BIN)/python "$(TORCH)"

fuzz: install  ## tries what nobody thought of for ten minutes: see docs/reliability.md
	$(BIN)/python tests/fuzz/rounds.py --minutes $(FUZZ_MINUTES)

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: install  ## speed beside nn.MultiheadAttention, and of whole layers
	$(BIN)/python benchmarks/attention.py
	$(BIN)/python benchmarks/layers.py

docs: install  ## the site of documentation: start at build/docs/index.html
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet docs build/docs
	@echo "documentation: build/docs/index.html"

clean:
	rm -rf $(VENV) runs build dist src/*.egg-info .coverage .pytest_cache .mypy_cache .ruff_cache
