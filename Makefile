# Everything here needs Python 3.11+, Java 17+ and make; `.venv` is made on first use and again when the lock changes.
PYTHON ?= python3
BIN := .venv/bin
# Two more than the cores of a small machine: the longest tests wait for Dagster's daemon, which ticks twice a minute.
PYTEST_WORKERS ?= 4

.DEFAULT_GOAL := help
.PHONY: help demo dev check test soak bench lock clean

help: ## Say what can be made
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

# One home for both, inside the checkout, so that trying the product leaves nothing elsewhere.
demo dev: export ADS_PIPELINE_HOME ?= $(CURDIR)/.demo

demo: .venv/ready ## Run the real assets over a small realistic week and show what came of it
	$(BIN)/ads-pipeline demo

dev: .venv/ready ## Open Dagster's UI on the demo's data
	$(BIN)/dagster dev

check: .venv/ready ## Lint, types, formatting
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

test: .venv/ready ## All tests but the long tiers
	$(BIN)/pytest -n $(PYTEST_WORKERS) --dist worksteal

soak: .venv/ready ## The same tests with 25 times the examples of every property, for hours
	SOAK=25 $(BIN)/pytest -n $(PYTEST_WORKERS) --dist worksteal --timeout 0

bench: .venv/ready ## Speed, as ratios measured side by side
	$(BIN)/python -m ads_pipeline_tests.benchmarks

lock: .venv/ready ## Resolve the dependencies anew into requirements.lock
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
		--group dev --custom-compile-command "make lock" pyproject.toml -o requirements.lock

clean: ## Remove the environment and every cache
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis

# The lock is complete, so nothing is resolved at install time and nothing but what it names is installed.
.venv/ready: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "ads_pipeline needs Python 3.11 or newer as $(PYTHON); name another with: make PYTHON=python3.12 …" >&2; exit 1; }
	@java -version 2>&1 | grep -qE 'version "(1[7-9]|[2-9][0-9])' || { \
		echo "ads_pipeline needs Java 17 or newer on the PATH, for Spark. Install a JRE:" >&2; \
		echo "  Debian, Ubuntu: apt-get install openjdk-17-jre-headless" >&2; \
		echo "  Fedora:         dnf install java-17-openjdk-headless" >&2; \
		echo "  macOS:          brew install openjdk@17" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@
