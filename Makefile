# `make serve` and `make test` set up what they need and do it once. `make help` lists everything.
SHELL := /bin/bash
.DEFAULT_GOAL := help

# Not taken from the environment: conda and some shells export a HOST of their own.
HOST = 127.0.0.1
PORT ?= 8000
PYTHON ?=
TORCH ?= torch==2.13.0
TORCH_INDEX ?=
PRECISION ?=
# pytest's workers: one more than the cores that may be used; 0 runs the tests in one process (for --pdb)
WORKERS ?= auto
# more arguments for the command that the target runs: make test ARGS="-k offsets"
ARGS ?=
export HOST PORT PYTHON TORCH TORCH_INDEX PRECISION

BIN := .venv/bin

.PHONY: help serve bundles test test-quick test-slow clients check format wheel docs docs-serve screenshots bench bench-compare gpu-check containers lock clean venv

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "  variables: HOST=$(HOST) PORT=$(PORT) PYTHON=python3.12 TORCH=$(TORCH) TORCH_INDEX=URL ARGS=..."

serve: ## set up, build the demo bundles if missing, serve them on PORT
	@scripts/serve.sh $(ARGS)

bundles: ## build the demo bundles again
	@rm -f bundles/.made-from bundles/.made-by
	@scripts/make_bundles.sh

venv:
	@scripts/make_venv.sh test

# A file of tests stays on one worker, so that what its tests share is made once; tests/conftest.py orders the files.
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# Those for a GPU run in small inside tests/benchmarks/test_gpu_check.py.
test: venv ## set up with torch, run every test but the soak tests
	@$(PYTEST) -m "not soak and not gpu" $(ARGS)

test-quick: venv ## the tests of a second or two each
	@$(PYTEST) -m "not slow and not soak and not gpu" $(ARGS)

clients: venv ## the wires with their real clients, and the examples for frameworks and Ray, in environments of their own
	@scripts/make_client_venvs.sh
	@BERT_GLINER_PYTHON="$(CURDIR)/.venv-gliner/bin/python" .venv-clients/bin/python -m pytest tests/service/http/compat tests/deploy tests/training/corpus/test_object_store.py $(ARGS)
	@BERT_GLINER_PYTHON="$(CURDIR)/.venv-gliner/bin/python" BERT_GLICLASS_PYTHON="$(CURDIR)/.venv-gliner/bin/python" \
		$(BIN)/python -m pytest tests/model_export/foreign_checkpoints/test_gli*.py $(ARGS)
	@BERT_SENTENCE_TRANSFORMERS_PYTHON="$(CURDIR)/.venv-vectors/bin/python" $(BIN)/python -m pytest \
		tests/model_export/foreign_checkpoints/test_token_vectors.py tests/model_export/foreign_checkpoints/test_sparse.py \
		tests/training/tasks/test_sparse.py $(ARGS)
	@BERT_FRAMEWORKS_PYTHON="$(CURDIR)/.venv-frameworks/bin/python" $(BIN)/python -m pytest tests/end_to_end/test_wire_examples.py $(ARGS)
	@BERT_RAY_PYTHON="$(CURDIR)/.venv-ray/bin/python" $(BIN)/python -m pytest tests/end_to_end/test_ray_*.py $(ARGS)

test-slow: venv ## the soak tests: long forms and more variants of what `make test` tries once
	@$(PYTEST) --timeout 1800 -m soak $(ARGS)

check: venv ## lint, format, types, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	cd client && "$(CURDIR)/$(BIN)/lint-imports" --config pyproject.toml

format: venv ## rewrite the code in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

wheel: venv ## the packages to publish, the product and its client, into dist/
	@rm -rf dist
	@$(BIN)/python -m hatchling build -t wheel -d dist
	@cd client && "$(CURDIR)/$(BIN)/python" -m hatchling build -t wheel -d "$(CURDIR)/dist"

docs: ## build the documentation into site/, links checked; it needs no server
	@scripts/docs.sh build $(ARGS)

docs-serve: ## show the documentation on port 8000 while you write it
	@scripts/docs.sh serve $(ARGS)

screenshots: venv ## the pictures of the pages in docs/images, from the demo bundles; needs a Chromium
	@scripts/make_bundles.sh
	@$(BIN)/python -m scripts.screenshots $(ARGS)

bench: venv ## requests per second and latency against a loop that calls the engine directly
	@scripts/make_bundles.sh
	@$(BIN)/python -m benchmarks.serve.closed_loop bundles/sentiment $(ARGS)

bench-compare: venv ## every server in turn on the same weights and texts: a table, a plot (an hour)
	@$(BIN)/bert-export --checkpoint models/sentiment --out runs/compare-fp32/sentiment --precision fp32 --overwrite
	@scripts/make_bench_venvs.sh
	@$(BIN)/python -m benchmarks.serve.compare runs/compare-fp32/sentiment --baselines-python .venv-bench/bin/python \
		--infinity-python .venv-infinity/bin/python $(ARGS)

# It sets nothing up: a GPU machine may have no network, and its torch and onnxruntime are what is to be tried.
gpu-check: ## everything on a GPU, in nine minutes at most, to runs/gpu-check; without a GPU in small
	@$(firstword $(PYTHON) $(wildcard $(BIN)/python) python3) -m benchmarks.gpu_check $(ARGS)

containers: ## build the images, start them with Prometheus, ask it, take it down
	@scripts/check_containers.sh

lock: venv ## write requirements/constraints.txt from what .venv holds
	@scripts/lock.sh

clean: ## remove environments, bundles and caches
	rm -rf .venv .venv-serve .venv-bench .venv-infinity .venv-clients .venv-frameworks .venv-gliner .venv-ray .venv-vectors .venv-docs bundles site dist .tools
	rm -rf .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
