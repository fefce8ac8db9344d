# The whole developer interface. A fresh machine needs Python 3.11 or newer with venv and pip, make and git.

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
PROTOS_INSTALLED := .venv-protos/.installed
PEERS_INSTALLED := .venv-peers/.installed
# `make bench PEERS=1` makes the other loaders' environment first; without it they are reported as not installed.
PEERS ?=
# Much of the tests' time is waiting for other processes. The tests of a file stay together. A process that a test has
# ended is not replaced: with a new one in the middle of a run pytest-xdist may wait for ever.
TEST_PROCESSES ?= 2

.DEFAULT_GOAL := help
.PHONY: help install demo test lint format bench bench-peers-env protos screenshots clean

help: ## Say what the targets do
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(INSTALLED) ## Make .venv with forebay, its extras and the tools, at the versions of constraints.txt

demo: $(INSTALLED) ## Train, kill with SIGKILL, resume with more ranks, and prove that the sequence is exact
	$(BIN)/forebay demo

test: $(INSTALLED) ## Run the tests
	$(BIN)/pytest --numprocesses $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder --max-worker-restart 0

lint: $(INSTALLED) ## Check format, style, types and the direction of imports
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(INSTALLED) ## Format the code and apply the safe fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(INSTALLED) $(if $(PEERS),$(PEERS_INSTALLED)) ## Run every benchmark and keep what it measured in benchmarks/results/
	@set -e; for file in benchmarks/bench_*.py; do \
		$(BIN)/python -m "benchmarks.$$(basename "$$file" .py)" --save; \
	done

bench-peers-env: $(PEERS_INSTALLED) ## Make .venv-peers with the loaders that the benchmarks compare with (several GB)

protos: $(PROTOS_INSTALLED) ## Generate the code beside the .proto files
	.venv-protos/bin/python -m grpc_tools.protoc -I protos \
		--plugin=protoc-gen-mypy=.venv-protos/bin/protoc-gen-mypy \
		--python_out=protos --mypy_out=protos --grpc_python_out=protos \
		protos/forebay_protos/v1/*.proto

screenshots: $(INSTALLED) ## Take the pictures of the status page that the documents show
	$(BIN)/python -m docs.screenshots

clean: ## Remove caches, builds and the demo's output; the environments stay
	rm -rf build dist demo-output .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find benchmarks client core examples protos server tests -name __pycache__ -type d -prune -exec rm -rf {} +

define new_environment
	@command -v "$(PYTHON)" > /dev/null || { echo "no program $(PYTHON): set PYTHON=..., a Python 3.11 or newer" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is older than Python 3.11: set PYTHON=... to a newer one" >&2; exit 1; }
	"$(PYTHON)" -m venv $(dir $@)
	$(dir $@)bin/python -m pip install --quiet --upgrade "pip>=25.1"
endef

$(INSTALLED): pyproject.toml constraints.txt
	$(new_environment)
	$(BIN)/python -m pip install -e ".[torch,mlflow,tokenizers]" --group dev -c constraints.txt
	@touch $@

$(PEERS_INSTALLED): benchmarks/requirements-peers.txt benchmarks/requirements-peers-alone.txt
	$(new_environment)
	.venv-peers/bin/python -m pip install -r benchmarks/requirements-peers.txt
	.venv-peers/bin/python -m pip install --no-deps -r benchmarks/requirements-peers-alone.txt
	@touch $@

$(PROTOS_INSTALLED): pyproject.toml
	$(new_environment)
	.venv-protos/bin/python -m pip install --group protos
	@touch $@
