# `make` alone lists the targets. All it needs is Python 3.11 or newer; it works in .venv and build/ inside the checkout.

PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3.14 python3 python; do \
	$$p -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
UV := uv
ASYNCAPI := build/asyncapi
ASYNCAPI_VERSION := 3.6.0
SOURCES := bus schemas agents tests

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-prometheus test-natscli test-jaeger asyncapi check bench soak lock

help: ## list the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /|/' | awk -F'|' '{printf "  make %-8s %s\n", $$1, $$2}'

setup: $(READY) ## make .venv with the locked dependencies

$(READY): requirements.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "make: no Python 3.11 or newer with venv found; install one or say PYTHON=/path/to/python3" >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

demo: $(READY) ## planner, writer and reviewer write build/brief.md about this repository
	@mkdir -p build
	BUS_STORE_DIR="$(CURDIR)/.bus" $(BIN)/python -m agents brief \
		"What happens to a message when the broker or a worker is killed?" \
		README.md schemas/README.md ops agents/README.md --out build/brief.md

test: $(READY) ## run every test
	@$(BIN)/python -m pytest -q -m serial || test $$? -eq 5  # 5: there is no such test
	@command -v npm >/dev/null && $(MAKE) --no-print-directory asyncapi || true
	@if test -e $(ASYNCAPI)/.ready; then echo '$(BIN)/python -m pytest -n 2 -m "not serial and not jaeger and not natscli and not prometheus"'; \
		$(BIN)/python -m pytest -n 2 -m "not serial and not jaeger and not natscli and not prometheus"; \
	else echo "NOT TESTED: the AsyncAPI document against the official parser; it needs node, npm and their registry" >&2; \
		$(BIN)/python -m pytest -n 2 -m "not serial and not jaeger and not natscli and not prometheus and not node"; fi
	@$(MAKE) --no-print-directory test-prometheus
	@$(MAKE) --no-print-directory test-natscli
	@$(MAKE) --no-print-directory test-jaeger

test-prometheus: $(READY)
	@if command -v prometheus >/dev/null && command -v promtool >/dev/null; then \
		$(BIN)/python -m pytest -q -m prometheus; \
	else \
		echo "make: the Prometheus tests were LEFT OUT: they need the programs prometheus and promtool" >&2; \
	fi

test-natscli: $(READY)
	@if ops/nats/run --path >/dev/null || command -v go >/dev/null; then \
		ops/nats/run --build && $(BIN)/python -m pytest -q -m natscli; \
	else \
		echo "make: the tests with the nats program were LEFT OUT: they need Go 1.25 or newer, or a nats program named in NATS_BINARY" >&2; \
	fi

# Last, because the first time it builds Jaeger, which takes minutes.
test-jaeger: $(READY)
	@if ops/jaeger/run --path >/dev/null || command -v go >/dev/null; then \
		ops/jaeger/run --build && $(BIN)/python -m pytest -q -m jaeger; \
	else \
		echo "make: the Jaeger tests were LEFT OUT: they need Go 1.25 or newer, or a jaeger program named in JAEGER_BINARY" >&2; \
	fi

asyncapi: $(ASYNCAPI)/.ready ## get the official AsyncAPI parser (needs node and npm)

$(ASYNCAPI)/.ready:
	@mkdir -p $(ASYNCAPI)
	npm install --prefix $(ASYNCAPI) --no-save --ignore-scripts --no-audit --no-fund --silent @asyncapi/parser@$(ASYNCAPI_VERSION)
	@touch $@

check: $(READY) ## format, lint, types, layout and unit tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/bus schema check
	$(BIN)/bus schema lint --strict
	$(BIN)/bus schema generate --check
	$(BIN)/python -m pytest -q -n 2 tests/test_layout.py tests/unit

bench: $(READY) ## measure this machine
	@set -e; for bench in tests/bench/bench_*.py; do echo "== $$bench"; $(BIN)/python "$$bench"; done

soak: $(READY) ## 10,000 pairs of schemas, and 50,000 messages through a chain under faults, the ledger exact (half an hour; SOAK="--messages 5000")
	$(BIN)/python -m tests.soak.schemas
	$(BIN)/python -m tests.soak $(SOAK)

lock: ## refresh requirements.lock to the newest versions that pyproject.toml allows (needs uv)
	$(UV) pip compile --quiet --no-config --universal --python-version 3.11 --upgrade --generate-hashes \
		--all-extras --group dev --custom-compile-command "make lock" -o requirements.lock pyproject.toml
