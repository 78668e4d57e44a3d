# Every target sets up what it needs: a virtual environment in .venv, pinned by constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow lint types contracts audit sbom fuzz bench clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(READY)  ## make .venv with everything the demo and the tests need

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[demo,dev]'
	touch $@

demo: setup  ## train LeNet-5 on four emulated, unlike nodes (one to two minutes)
	$(BIN)/gangline demo

test: lint types contracts  ## everything that CI runs
	$(BIN)/pytest -n 2 -m 'not slow and not gpu'

test-slow: setup  ## the long proofs
	$(BIN)/pytest -m 'slow and not gpu'

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

contracts: setup
	$(BIN)/lint-imports

audit: .cache/audit/bin/pip-audit  ## look for known vulnerabilities in the pinned dependencies
	.cache/audit/bin/pip-audit --strict --disable-pip --no-deps -r constraints.txt

sbom: setup .cache/sbom/bin/cyclonedx-py  ## write sbom.json: what the environment is made of
	.cache/sbom/bin/cyclonedx-py environment --output-reproducible -o sbom.json $(BIN)/python

fuzz: setup .cache/fuzz/bin/schemathesis  ## schemathesis against a coordinator's own OpenAPI
	$(BIN)/pytest -m slow tests/fuzz

.cache/audit/bin/pip-audit .cache/sbom/bin/cyclonedx-py .cache/fuzz/bin/schemathesis:
	$(PYTHON) -m venv $(@D)/..
	$(@D)/python -m pip install --quiet --disable-pip-version-check \
		$(subst cyclonedx-py,cyclonedx-bom,$(@F))

clean:  ## remove the virtual environment and the caches
	rm -rf $(VENV) .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
