# Everything runs in .venv, which the first target that needs it makes.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
ROOMS := store rules recorder replay api
CODE := $(ROOMS) addressing.py cli.py console.py demo.py showing.py examples tests $(wildcard benchmarks)

.DEFAULT_GOAL := help
.PHONY: help demo test lint format clean

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(READY): pyproject.toml
	@command -v $(PYTHON) > /dev/null || { echo "No $(PYTHON) here: install Python 3.11 or newer, or name one: make PYTHON=..."; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; got $$($(PYTHON) --version)"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@mkdir -p $(VENV)/typing && ln -sfn ../.. $(VENV)/typing/steptape
	@touch $@

demo: $(READY)  ## Train on real data, backtest rules on it, train again under them, compare
	$(BIN)/steptape demo

test: $(READY)  ## Run the tests
	$(BIN)/python -m pytest

lint: $(READY)  ## Check style, format and types
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	MYPYPATH=$(VENV)/typing $(BIN)/mypy $(addprefix -p steptape.,$(ROOMS) examples) -m steptape.cli -m steptape.demo

format: $(READY)  ## Rewrite the code in the project's format
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)

clean:  ## Remove the environment and what tools left behind
	rm -rf $(VENV) build *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
