# Needs Python 3.11+, Java 17+ and make. `.venv` is created on first use, and again when a lock file changes.
SHELL := bash -o pipefail
PYTHON ?= python3
BIN := .venv/bin
CORES := $(shell nproc 2>/dev/null || sysctl -n hw.ncpu 2>/dev/null || echo 2)
# One more than the cores, because some tests wait. Each worker collects all tests and starts its own Spark.
PYTEST_WORKERS ?= $(shell expr $(CORES) + 1)
# A file runs in one worker. conftest.py says in which order the files start.
PYTEST := $(BIN)/pytest -n $(PYTEST_WORKERS) --dist loadfile --no-loadscope-reorder

# `make PYTHON=python3.13 …` makes the environment anew when it has another version.
ifeq ($(origin PYTHON),command line)
version = $(shell $(1) -c 'import sys; print(sys.version_info[:2])' 2>/dev/null)
ifneq ($(call version,$(BIN)/python),$(call version,$(PYTHON)))
$(shell rm -rf .venv)
endif
endif

# Images often set it. Each of the many processes of the tests would then compile the package again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo demo-google-ads dev check test test-wheel test-browser soak bench docs lock clean

help: ## List the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

# Both use one home inside the checkout, so that a trial writes nothing elsewhere.
demo dev: export ADS_PIPELINE_HOME ?= $(CURDIR)/.demo

demo: .venv/product ## Run the real assets over a made-up week and show the result
	$(BIN)/ads-pipeline demo

dev: .venv/product ## Open Dagster's UI on the demo data
	$(BIN)/ads-pipeline dev

demo-google-ads: export ADS_PIPELINE_HOME ?= $(CURDIR)/.demo-google-ads
demo-google-ads: .venv/product ## Fetch with the real Google Ads client from a server on loopback
	$(BIN)/ads-pipeline demo --google-ads

check: .venv/ready ## Check lint, formatting and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

test: .venv/ready ## Run all tests except the long tiers
	$(PYTEST)

test-wheel: .venv/ready ## Install the built wheel with resolved requirements and use it in an empty directory
	WHEEL_REQUIREMENTS=resolved $(BIN)/pytest -n 3 --dist load ads_pipeline_tests/test_wheel.py

# Playwright drives the installed Chromium. It is not in the lock file, because nothing else needs it.
CHROMIUM ?= $(firstword $(foreach name,chromium chromium-browser google-chrome,$(shell command -v $(name))))
BROWSER_TESTS := managers_report first_hour operators_day misleading_cases
test-browser: export CHROMIUM := $(CHROMIUM)
test-browser: ## Follow an operator's day in the UI with Chromium; renews docs/images
	@test -n "$(CHROMIUM)" || { \
		echo "make test-browser needs Chromium on the PATH, or its path in CHROMIUM. Install it:" >&2; \
		echo "  Debian:  apt-get install chromium" >&2; \
		echo "  Fedora:  dnf install chromium" >&2; \
		echo "  macOS:   brew install chromium" >&2; }
	@$(BIN)/python -c 'import playwright' 2>/dev/null || { \
		echo "make test-browser needs Playwright. Install it:" >&2; \
		echo "  make .venv/ready && $(BIN)/uv pip install --group browser" >&2; exit 1; }
	@test -n "$(CHROMIUM)"
	@$(MAKE) --no-print-directory .venv/ready
	$(BIN)/pytest -n 0 $(BROWSER_TESTS:%=ads_pipeline_tests/browser/%.py)

soak: .venv/ready ## Run the same tests with 25 times the examples of every property; takes hours
	SOAK=25 $(PYTEST) --timeout 0

# The other tools are installed into environments of their own in ~/.cache/ads_pipeline_environments, once.
bench: .venv/ready ## Measure speed beside other tools; writes ads_pipeline_tests/benchmarks/RESULTS.md
	$(BIN)/python -m ads_pipeline_tests.benchmarks

docs: export NO_MKDOCS_2_WARNING := 1
docs: .venv/docs ## Build the website of the docs in build/docs; fails for a broken link or anchor
	$(BIN)/mkdocs build --strict # with --quiet, it would not see its own warnings
	@echo "Open build/docs/index.html; it needs neither a server nor a network."

lock: .venv/ready ## Resolve the dependencies again into the lock files
	$(COMPILE) --all-extras --group dev pyproject.toml -o requirements.lock
	$(COMPILE) --extra google-ads --group build --constraint requirements.lock pyproject.toml -o product.lock
	$(COMPILE) --group docs --constraint requirements.lock -o docs.lock
	$(COMPILE) examples/requirements.in -o examples/requirements.lock

COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	--custom-compile-command "make lock"

clean: ## Remove the environment and all caches
	rm -rf .venv build .mypy_cache .pytest_cache .ruff_cache .hypothesis

# The lock files are complete: nothing is resolved at install time, and nothing else is installed. The demo starts when
# the product's own packages are there; tests and checkers need requirements.lock, which pins the same versions.
.venv/ready: requirements.lock .venv/product
	@echo "Installing the test tools into .venv …"
	@$(call install,requirements.lock)
	@touch $@

.venv/docs: docs.lock .venv/ready
	@echo "Installing the generator of the website into .venv …"
	@$(INSTALL) --quiet --require-hashes -r docs.lock
	@touch $@

.venv/product: product.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "ads_pipeline needs Python 3.11 or newer as $(PYTHON); name another with: make PYTHON=python3.12 …" >&2; exit 1; }
	@java -version 2>&1 | grep -qE 'version "(1[7-9]|[2-9][0-9])' || { \
		echo "ads_pipeline needs Java 17 or newer on the PATH, for Spark. Install a JRE:" >&2; \
		echo "  Debian, Ubuntu: apt-get install openjdk-17-jre-headless" >&2; \
		echo "  Fedora:         dnf install java-17-openjdk-headless" >&2; \
		echo "  macOS:          brew install openjdk@17" >&2; exit 1; }
	@echo "Installing ads_pipeline's packages into .venv, once …"
	@$(if $(UV),$(UV) venv --quiet --seed --allow-existing --python $(PYTHON) .venv,$(PYTHON) -m venv .venv)
	@$(call install,product.lock)
	@$(INSTALL) --quiet --no-build-isolation -e .
	@touch $@

# uv installs the same files several times faster than pip. A terminal shows each package as it comes; where the output is
# no terminal, a line every few seconds says how many are there.
UV := $(shell command -v uv)
SECONDS_BETWEEN_LINES ?= 5
INSTALL = $(if $(UV),$(UV) pip install --python $(BIN)/python,$(BIN)/pip install --disable-pip-version-check) --no-deps
install = $(if $(MAKE_TERMOUT),$(call on_terminal,$(1)),$(call in_lines,$(1)))
on_terminal = $(INSTALL) --require-hashes -r $(1) $(if $(UV),,$(named))
named = | awk -v total=$$(grep -c == $(1)) '/^(Collecting|Requirement already)/ { printf "\r%d of %d", ++n, total } /^Installing/ { printf ", unpacking …" } END { print "" }'
in_lines = while sleep $(SECONDS_BETWEEN_LINES); do $(call count,$(1)); done & lines=$$!; \
	$(INSTALL) --quiet --require-hashes -r $(1); code=$$?; kill $$lines; $(call count,$(1)); exit $$code
count = echo "  $$SECONDS s: $$(ls -d .venv/lib/python3*/site-packages/*.dist-info 2>/dev/null | wc -l) of $$(grep -c == $(1)) packages"
