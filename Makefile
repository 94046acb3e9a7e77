# Every target sets up what it needs, in a .venv beside this file.
SHELL := bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PROTOS := $(wildcard src/elastane/rpc/protos/*.proto)

.PHONY: setup demo test slow test-kubernetes lint bench soak docs protos manifests lock help

help:  ## Show the targets.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1	/' | expand -t 24

setup: $(VENV)/.ready  ## Make the development environment.

# The tests start a PostgreSQL and a Chromium of their own, from Debian's packages.
$(VENV)/.ready: requirements-dev.lock pyproject.toml
	ls /usr/lib/postgresql/*/bin/initdb > /dev/null 2>&1 || command -v initdb > /dev/null || \
	  if [ "$$(id -u)" = 0 ]; then apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y postgresql; \
	  else echo "PostgreSQL is missing: install it, for the tests of the Brain"; fi
	command -v chromium > /dev/null || \
	  if [ "$$(id -u)" = 0 ]; then apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y chromium; \
	  else echo "Chromium is missing: install it, for the tests of the dashboard"; fi
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(MAKE) --no-print-directory $(BIN)/promtool
	$(BIN)/pip install --quiet --requirement requirements-dev.lock
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

# The tests have Prometheus's own tool look at the metrics. Of Debian's package it is taken alone, for that has a service.
$(BIN)/promtool:
	@if command -v promtool > /dev/null; then ln -s "$$(command -v promtool)" $@; \
	elif command -v dpkg-deb > /dev/null && mkdir -p build/promtool && cd build/promtool && \
	    { apt-get download -qq prometheus || { apt-get update -qq && apt-get download -qq prometheus; }; }; then \
	  dpkg-deb --fsys-tarfile prometheus_*.deb | tar --extract --file - --strip-components 3 ./usr/bin/promtool && \
	  install promtool $(CURDIR)/$@; \
	else echo "promtool is missing: install prometheus, for the tests of the metrics"; fi

demo: setup  ## Train while a worker joins, one is drained and one is killed, and show what it cost.
	$(BIN)/python examples/demo.py

test: setup  ## Run the tests, with coverage.
	$(BIN)/pytest --cov --cov-report=term -m "not slow" --ignore tests/kubernetes

slow: setup  ## Run the tests that take long.
	$(BIN)/pytest -m slow --ignore tests/kubernetes

test-kubernetes: setup  ## Build a real cluster, once, and run the tests that need one (as root, on Debian).
	$(BIN)/python -m tests.kubernetes.cluster build
	$(BIN)/pytest tests/kubernetes

lint: setup  ## Check style, types, layers, generated files and docs.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(MAKE) --no-print-directory protos OUT=build/protos
	for file in $$(cd build/protos && find . -type f); do cmp build/protos/$$file src/$$file; done
	$(BIN)/python -m elastane.operator.deploy_files --check deploy
	$(BIN)/python -m elastane.prometheus.tables --check docs/metrics.md
	$(MAKE) --no-print-directory docs

soak: setup  ## Torment jobs for a quarter of an hour, and check each.
	$(BIN)/python -m tests.soak.chaos
	$(BIN)/python -m tests.soak.training
	$(BIN)/python -m tests.soak.masters
	$(BIN)/python -m tests.soak.servers --moments 3

docs: setup  ## Build the documentation into docs/_build.
	$(BIN)/sphinx-build -q -W -b html docs docs/_build

bench: setup  ## Measure; see benchmarks/.
	$(BIN)/python -m benchmarks.tasks
	$(BIN)/python -m benchmarks.detection
	$(BIN)/python -m benchmarks.rendezvous
	$(BIN)/python -m benchmarks.start
	$(BIN)/python -m benchmarks.steady
	$(BIN)/python -m benchmarks.membership --peers torchft
	$(BIN)/python -m benchmarks.evaluation
	$(BIN)/python -m benchmarks.checkpoint
	$(BIN)/python -m benchmarks.ps
	$(BIN)/python -m benchmarks.ps_wire
	$(BIN)/python -m benchmarks.ps_rows
	$(BIN)/python -m benchmarks.coordinator
	$(BIN)/python -m benchmarks.sizing
	$(BIN)/python -m benchmarks.sizing --real
	$(BIN)/python -m benchmarks.brain
	$(BIN)/python -m benchmarks.dashboard

protos: setup  ## Generate the messages from the .proto files.
	mkdir -p $(or $(OUT),src)
	$(BIN)/python -m grpc_tools.protoc -Isrc --python_out=$(or $(OUT),src) --pyi_out=$(or $(OUT),src) $(PROTOS)

manifests: setup  ## Generate the files under deploy/, and the tables of docs/metrics.md, from the models.
	$(BIN)/python -m elastane.operator.deploy_files deploy
	$(BIN)/python -m elastane.prometheus.tables docs/metrics.md

lock:  ## Pin the development environment anew.
	rm -rf build/lock && $(PYTHON) -m venv build/lock
	build/lock/bin/pip install --quiet torch==2.13.0 editables hatchling
	build/lock/bin/pip install --quiet --no-build-isolation '.[dev]'
	{ echo '# The development environment, pinned by `make lock`.'; \
	  build/lock/bin/pip freeze --exclude elastane | sed 's/+cpu//'; } > requirements-dev.lock
