# Everything runs in .venv, which the first target that needs it makes.
PYTHON ?= python3
FUZZ_S ?= 600
TEST_PROCESSES ?= 2
PYTEST = -m pytest --numprocesses $(TEST_PROCESSES) --dist worksteal
VENV := .venv
BIN := $(VENV)/bin
COMPAT := .venv-compat
TRACKERS := .venv-trackers
LOWEST := .venv-lowest
REAL_RUNS := $(or $(STEPTAPE_REAL_RUNS),../shared/runs)
READY := $(VENV)/.ready
TYPING := $(VENV)/typing
QUICK_SECONDS := .coverage-quick.xml
ROOMS := store rules recorder importers integrations replay shipping api cli examples
CODE := setup.py steptape $(ROOMS) docs tests $(wildcard benchmarks)

# What libFuzzer is told: how long, and what counts as too slow, too large and too long.
FUZZ = -max_total_time=$(FUZZ_S) -timeout=30 -rss_limit_mb=3000 -max_len=4096 -dict=tests/fuzz/words.dict \
	-artifact_prefix=.fuzz/ -create_missing_dirs=1 -print_final_stats=1

.DEFAULT_GOAL := help
.PHONY: help demo test test-all seconds explore coverage mutants matrix lowest compat frameworks docs pictures lint format fuzz fuzz-api clean

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# The rooms under the names that imports have, for tools that read the code without running it.
$(TYPING): pyproject.toml
	@rm -rf $@ && mkdir -p $@/steptape
	@cd $@/steptape && ln -s ../../../steptape/* . && for room in $(ROOMS); do ln -s ../../../$$room $$room; done

$(READY): pyproject.toml setup.py | $(TYPING)
	@command -v $(PYTHON) > /dev/null || { echo "No $(PYTHON) here: install Python 3.11 or newer, or name one: make PYTHON=..."; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; got $$($(PYTHON) --version)"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

demo: $(READY)  ## Train on real data, backtest rules on it, train again under them, compare
	$(BIN)/steptape demo --torch

test: $(READY)  ## Run the quick suite: tests of up to half a second, and one of each slow kind
	$(BIN)/python $(PYTEST) --quick

test-all: $(READY)  ## Run all tests, on the same examples each time
	$(BIN)/python $(PYTEST)

seconds: $(READY)  ## Run all tests and measure each, for the choice of 'make test'
	$(BIN)/python $(PYTEST) --record-seconds

explore: $(READY)  ## Run all tests on new examples, ten times as many
	$(BIN)/python $(PYTEST) --hypothesis-profile explore

coverage: $(READY)  ## Run all tests and print which branches of the code they leave out
	$(BIN)/python -m coverage erase
	$(BIN)/python -m coverage run $(PYTEST); tests=$$?; \
	$(BIN)/python -m coverage combine --quiet && $(BIN)/python -m coverage report && exit $$tests

$(QUICK_SECONDS): export COVERAGE_FILE = .coverage-quick
$(QUICK_SECONDS): $(READY)
	$(BIN)/python -m coverage erase
	$(BIN)/python -m coverage run $(PYTEST) --quick --junitxml=$@
	$(BIN)/python -m coverage combine --quiet

mutants: $(QUICK_SECONDS)  ## Change the code in 200 places, one at a time, and count the changes that 'make test' notices
	$(BIN)/python tests/mutants.py --processes $(TEST_PROCESSES) $(MUTANTS)

matrix:  ## Run the tests of rules and store on every Python found here, from 3.11 to 3.14
	TEST_PROCESSES=$(TEST_PROCESSES) bash tests/matrix.sh

lowest: $(LOWEST)/.ready $(TYPING)  ## Run all tests with the lowest version of everything that steptape needs
	$(LOWEST)/bin/python $(PYTEST)

$(LOWEST)/.ready: pyproject.toml tests/lowest.py
	$(PYTHON) -m venv $(LOWEST)
	$(PYTHON) tests/lowest.py > $(LOWEST)/lowest.txt
	$(LOWEST)/bin/python -m pip install --quiet --editable '.[dev]' --constraint $(LOWEST)/lowest.txt
	@touch $@

compat: $(READY) $(COMPAT)/.ready $(TRACKERS)/.ready  ## Compare firings with the real trainer controller, and imports with real trackers
	HF_HUB_OFFLINE=1 PYTHONPATH=tests $(COMPAT)/bin/python -W ignore -m compat.upstream
	PYTHONPATH=tests $(BIN)/python -m compat.comparison
	rm -rf .trackers
	HF_HUB_OFFLINE=1 WANDB_SILENT=true PYTHONPATH=tests $(TRACKERS)/bin/python -W ignore -m trackers.writing .trackers $(REAL_RUNS)
	PYTHONPATH=tests $(BIN)/python -m trackers.comparison .trackers

frameworks:  ## Test the recorder in the training frameworks; FRAMEWORKS="lightning accelerate" names some
	PYTHON=$(PYTHON) TEST_PROCESSES=$(TEST_PROCESSES) bash tests/frameworks/run.sh $(FRAMEWORKS)

$(COMPAT)/.ready: tests/compat/requirements.txt
	$(PYTHON) -m venv $(COMPAT)
	$(COMPAT)/bin/python -m pip install --quiet --requirement tests/compat/requirements.txt
	$(COMPAT)/bin/python -m pip install --quiet --no-deps fms-hf-tuning==3.2.2
	@touch $@

$(TRACKERS)/.ready: tests/trackers/requirements.txt
	$(PYTHON) -m venv $(TRACKERS)
	$(TRACKERS)/bin/python -m pip install --quiet --requirement tests/trackers/requirements.txt
	@touch $@

docs: $(READY)  ## Build the site of documents in build/site; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

pictures: $(READY)  ## Take the screenshots of the documents anew; needs Chromium
	$(BIN)/python docs/pictures.py

lint: $(READY)  ## Check style, format and types
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	MYPYPATH=$(TYPING):tests:benchmarks $(BIN)/mypy --explicit-package-bases \
		$(wildcard docs/*.py tests/*.py tests/compat/*.py tests/frameworks/*.py tests/fuzz/*.py tests/trackers/*.py benchmarks/*.py)
	MYPYPATH=$(TYPING) $(BIN)/mypy -p steptape

fuzz: $(READY)  ## Fuzz the readers of policies, rules, tests and past runs, FUZZ_S seconds each
	$(BIN)/python -m pip install --quiet --editable '.[fuzz]'
	$(BIN)/python tests/fuzz/fuzz_rules.py policy .fuzz/policy rules/policies $(FUZZ)
	$(BIN)/python tests/fuzz/fuzz_rules.py rule .fuzz/rule tests/fuzz/seeds/rule $(FUZZ)
	$(BIN)/python tests/fuzz/fuzz_rules.py tests .fuzz/tests rules/policies $(FUZZ)
	PYTHONPATH=tests $(BIN)/python tests/fuzz/fuzz_importers.py $(FUZZ_S) $(REAL_RUNS) $(wildcard .trackers)

fuzz-api: $(READY)  ## Fuzz the HTTP API from its OpenAPI document, 5,000 requests and more
	$(BIN)/python tests/fuzz/fuzz_api.py 5000

format: $(READY)  ## Rewrite the code in the project's format
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)

clean:  ## Remove the environment and what tools left behind
	rm -rf $(VENV) .venv-* .trackers api/pages/vendor build *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .fuzz .coverage*
