# Every target first makes its environment: once, in .venv, in about three minutes and 3 GB.
# It is made anew when what it is made of changes.
#
#   make run        serve an embedding model with vLLM under three policies, and print the table
#   make test       the tests, real vLLM engines among them
#   make test-full  the tests that take long
#   make test-xla   the tests on torch-xla, in an environment of its own (7 GB, kept in the user's cache)
#   make run-xla    serve an embedding model on torch-xla under three policies, and print the tables
#   make check      style, types, import arrows, documentation
#   make bench      the benchmarks
#   make reference  write docs/reference anew, from the commands' own help
#   make clean      remove the environment and everything that was made
#
# PYTHON chooses the interpreter, ARGS goes to the command: make run ARGS="--policy dynamic-dual"

PYTHON ?= python3.11
BIN := .venv/bin
READY := .venv/ready

.DEFAULT_GOAL := help
.PHONY: help run test test-full test-xla run-xla check bench reference clean

help:
	@sed -n 's/^#   //p' Makefile

$(READY): pyproject.toml tests/vllm/install.py
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is not there: install Python 3.11, or say make PYTHON=…"; exit 1; }
	@command -v g++ >/dev/null || { echo "g++ is not there: graphs are compiled with it; install g++"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python tests/vllm/install.py
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,plot]'
	touch $@

run: $(READY)
	$(BIN)/graphcache run $(ARGS)

test: $(READY)
	$(BIN)/pytest $(ARGS)

test-full: $(READY)
	$(BIN)/pytest -m slow $(ARGS)

# Beside tests/xla, what the package rests on, with the oldest torch that it supports.
test-xla:
	python=$$(PYTHON=$(PYTHON) tests/xla/environment) && PJRT_DEVICE=CPU PYTHONPATH=. $$python -m pytest \
		tests/xla tests/test_cache.py tests/policy tests/eviction tests/backends/test_dynamo_backend.py \
		tests/backends/test_backend_inductor.py tests/backends/test_backend_contract.py \
		--timeout 900 $(ARGS)

run-xla:
	python=$$(PYTHON=$(PYTHON) tests/xla/environment) && PJRT_DEVICE=CPU PYTHONPATH=. $$python -m \
		examples.xla_runner.run $(ARGS)

check: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/pytest tests/test_imports.py tests/test_docs.py

bench: $(READY)
	$(BIN)/graphcache bench all $(ARGS)

reference: $(READY)
	$(BIN)/python -m graphcache.cli.reference docs/reference

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
