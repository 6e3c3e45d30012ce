# demo and test set up what they need; each needs nothing but Python 3.11+, git and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
COMPILED := nodeagent/gpudoctor/facts/nccl/_sieve.c

.PHONY: demo test e2e e2e-old lint bench index schema crd manifests lock image clean

demo: $(VENV)/installed
	$(BIN)/gpudoctor check --pod trainer-0 --from samples/trainer-without-rdma.json || test $$? -eq 1

test: $(VENV)/installed-dev
	$(BIN)/python -m pytest

# Against a real Kubernetes control plane, built from tests/cluster/v*/go.mod on the first run;
# skipped where there is no Go.
e2e: $(VENV)/installed-e2e
	$(BIN)/python -m pytest -m cluster -rfE tests/cluster

e2e-old: $(VENV)/installed-e2e
	KUBERNETES_LINE=1.34 $(BIN)/python -m pytest -m cluster -rfE tests/cluster

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/installed-dev
	$(BIN)/python -m bench

# The indexes of the runbooks and of the checks that start-up reads; commit them with the change.
index: $(VENV)/installed
	$(BIN)/python -m gpudoctor.catalogue runbooks
	$(BIN)/python -m gpudoctor.registry checks/gpudoctor_checks

# The published JSON schema of reports; commit it with the change of report.py.
schema: $(VENV)/installed
	$(BIN)/python -m gpudoctor.report > nodeagent/gpudoctor/report.schema.json

# The Diagnosis CRD in the chart; commit it with the change of publish/status.py.
crd: $(VENV)/installed
	$(BIN)/python -m gpudoctor.publish.crd > daemonset/chart/templates/diagnosis-crd.yaml

# The plain manifests; commit them with the change of the chart.
manifests: $(VENV)/installed-dev
	$(BIN)/python -m daemonset.render "$$($(BIN)/python -m tests.helm)"

# What goes into the image, by hash; commit it with the change of constraints.txt.
lock: $(VENV)/installed-dev
	$(BIN)/python -m daemonset.lock

# The container image. BASE, MACHINE and BUILDER can be set; daemonset/README.md says how.
IMAGE ?= localhost/gpudoctor:latest
BUILDER ?= buildah
MACHINE ?= $(shell uname -m)
image: $(VENV)/installed-dev
	BUILDER="$(BUILDER)" BASE="$(BASE)" $(BIN)/python -m daemonset.image $(MACHINE) $(IMAGE)

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: pyproject.toml setup.py $(COMPILED) constraints.txt | $(VENV)/bin/python
	$(PIP) install --constraint constraints.txt --editable '.[agent,html]'
	touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(PIP) install --upgrade 'pip>=25.1'
	$(PIP) install --constraint constraints.txt --group dev
	touch $@

$(VENV)/installed-e2e: $(VENV)/installed-dev
	$(PIP) install --constraint constraints.txt --group e2e
	touch $@

clean:
	rm -rf $(VENV) $(COMPILED:.c=.*.so) build dist .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache
