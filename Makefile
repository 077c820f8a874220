# The few commands of quorlock. Each sets up what it needs in $(VENV) by itself (tools/setup), once.
#
#   make test ARGS="tests/core -k tally"           arguments for pytest (-n0: in one process)
#   make sim SEED=7 HTML=out.html                  one simulated world, as a page for a browser
#   PYTHON=python3.13 make test VENV=.venv313      another Python, beside the first

VENV ?= .venv
ARGS ?=
export VENV PYTHON

python = "$(VENV)/bin/python"
RUNS ?=
SCENARIO ?= all
SEED ?=
HTML ?=
TRACE ?=
MINUTES ?= 10
CHECKS = check-format check-lint check-layers check-mypy check-pyright check-docs

.PHONY: help demo test sim explore soak spec bench bench-guard recording check format clean \
    ready-demo ready-test ready-dev $(CHECKS)
.DEFAULT_GOAL := help
.NOTPARALLEL:

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' Makefile

demo: ready-demo ## eight workers, five nodes, three faults: nothing may be lost (ARGS=--no-lock: the contrast)
	@$(python) -m quorlock demo $(ARGS)

test: ready-test ## run the tests, in random order, in two processes (ARGS= goes to pytest)
	@$(python) -m pytest -n 2 --dist worksteal $(ARGS)

sim: ready-demo ## simulated worlds (SEED= RUNS= SCENARIO= HTML= TRACE=; one SEED: that world, drawn)
	@$(python) -m quorlock.testing.sim --scenario "$(SCENARIO)" $(if $(SEED),--seed $(SEED)) \
	    $(if $(RUNS),--runs $(RUNS)) $(if $(HTML),--html "$(HTML)") $(if $(TRACE),--trace "$(TRACE)") $(ARGS)

explore: ready-demo ## every order of events in a small world (ARGS="--nodes 1 --jumps 3 --crashes 1")
	@$(python) -m quorlock.testing.explore $(ARGS)

soak: ready-test ## traffic and all faults at random on real servers (MINUTES= SEED=)
	@$(python) -m tests.servers.soak --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(ARGS)

spec: ready-demo ## check the formal model: what must hold holds, what must fail fails (ARGS=--full: larger)
	@tools/setup-spin
	@$(python) -m spec.check $(ARGS)

bench: ## side by side with the peers and with bare sockets, 25 minutes (QUICK=1: one minute)
	@bench/setup && bench/.venv/bin/python -m bench $(if $(QUICK),--quick) $(ARGS)

bench-guard: ready-test ## is it still as near to bare sockets as it was? (ARGS=)
	@$(python) -m bench.guard $(ARGS)

recording: ready-demo ## the README's recording, docs/images/demo.svg (needs tmux)
	@$(python) -m tools.record tools/recordings/demo.toml docs/images/demo.svg

check: $(CHECKS) ## format, lint, layers, types, docs: the fast ones first
	@echo "check: all is well"

format: ready-dev ## write the code the way check wants it
	@$(python) -m ruff check --quiet --fix-only .
	@$(python) -m ruff format .

clean: ## remove what the other targets made
	@[ ! -f "$(VENV)/pyvenv.cfg" ] || rm -rf "$(VENV)"
	@rm -rf bench/.venv bench/node/node_modules bench/results/quick
	@rm -rf build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	@find src tests tools spec -name __pycache__ -type d -prune -exec rm -rf {} +

check-format: ready-dev
	@echo "check: format (ruff)"
	@$(python) -m ruff format --check --output-format concise .

check-lint: ready-dev
	@echo "check: lint (ruff)"
	@$(python) -m ruff check --quiet .

check-layers: ready-dev
	@echo "check: layers"
	@$(python) -m pytest -q --no-header tests/project/test_layers.py

check-mypy: ready-dev
	@echo "check: types (mypy)"
	@$(python) -m mypy --no-error-summary

check-pyright: ready-dev
	@echo "check: types (pyright)"
	@$(python) -m pyright --pythonpath $(python)

check-docs: ready-dev
	@echo "check: docs (every snippet, command and link)"
	@$(python) -m tools.snippets

ready-demo ready-test ready-dev: ready-%:
	@tools/setup $*
