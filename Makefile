# The few commands of quorlock. Each sets up what it needs in $(VENV) by itself (tools/setup), once.
#
#   make test ARGS="tests/unit/core -k extend"          arguments for pytest (-n0: in one process); a path
#                                                  or -m chooses among all tests
#   make sim SEED=7 HTML=out.html                  one simulated world, as a page for a browser
#   PYTHON=python3.13 make test VENV=.venv313      another Python, beside the first

VENV ?= .venv
ARGS ?=
# Processes that run all tests. Over half of a test's time is waiting.
WORKERS ?= 4
export VENV PYTHON

python = "$(VENV)/bin/python"
pytest = $(python) -m pytest --dist worksteal -n
RUNS ?=
SCENARIO ?= all
SEED ?=
HTML ?=
TRACE ?=
MINUTES ?= 10
WAITING ?=
CHECKS = check-format check-lint check-layers check-mypy check-pyright check-docs

.PHONY: help demo quick test test-all sim soak spec bench bench-guard recording docs docs-serve check \
    format lock \
    clean ready-demo ready-test ready-dev $(CHECKS)
.DEFAULT_GOAL := help
.NOTPARALLEL:

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' Makefile

demo: ready-demo ## eight workers, five nodes, three faults: nothing may be lost (ARGS=--no-lock: the contrast)
	@$(python) -m quorlock demo $(ARGS)

quick: ready-dev ## lint, layers, style, and the pure unit tests: 20 seconds (ARGS= goes to pytest)
	@$(python) -m ruff format --check --quiet .
	@$(python) -m ruff check --quiet .
	@$(pytest) 2 --tier quick $(ARGS)

test: ready-test ## what a change needs: unit tests, both faces, 500 worlds: 2 minutes (ARGS=)
	@$(pytest) 2 --tier test $(ARGS)

test-all: ready-test ## run every test: 25 minutes (ARGS= WORKERS=4: processes)
	@$(pytest) $(WORKERS) $(ARGS)

sim: ready-demo ## simulated worlds (SEED= RUNS= SCENARIO= HTML= TRACE=; one SEED: that world, drawn)
	@PYTHONPATH=sim $(python) -m quorlock_sim --scenario "$(SCENARIO)" $(if $(SEED),--seed $(SEED)) \
	    $(if $(RUNS),--runs $(RUNS)) $(if $(HTML),--html "$(HTML)") $(if $(TRACE),--trace "$(TRACE)") $(ARGS)

soak: ready-test ## traffic and all faults at random on real servers (MINUTES= SEED=; WAITING=1: of waiters)
	@$(python) -m tests.servers.$(if $(WAITING),waiting_soak,soak) --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(ARGS)

spec: ready-demo ## check the formal model: what must hold holds, what must fail fails (ARGS=--full: larger)
	@tools/setup-spin
	@$(python) -m spec.check $(ARGS)

bench: ## side by side with the peers and with bare sockets, 40 minutes (QUICK=1: one minute)
	@bench/setup && bench/.venv/bin/python -m bench $(if $(QUICK),--quick) $(ARGS)

bench-guard: ready-test ## is it still as near to bare sockets as it was? (ARGS=)
	@$(python) -m bench.guard $(ARGS)

recording: ready-demo ## the README's recording, docs/images/demo.svg (needs tmux)
	@$(python) -m tools.record tools/recordings/demo.toml docs/images/demo.svg

docs: ready-demo ## the documentation as a site in site/; fails on warnings and dead links
	@tools/setup-docs $(python)
	@$(python) -m tools.site

docs-serve: ready-demo ## build the site, and serve it on http://127.0.0.1:8000/
	@tools/setup-docs $(python)
	@$(python) -m tools.site serve

check: $(CHECKS) ## format, lint, layers, types, docs: the fast ones first
	@echo "check: all is well"

format: ready-dev ## write the code the way check wants it
	@$(python) -m ruff check --quiet --fix-only .
	@$(python) -m ruff format .

lock: ready-dev ## renew tools/constraints.txt: the newest versions of what tests and checks use
	@$(python) -m pip install -qq --disable-pip-version-check 'uv>=0.9'
	@$(python) -m uv pip compile --quiet --universal --python-version 3.11 --upgrade --no-annotate \
	    --no-header --extra demo --group dev --output-file tools/constraints.txt pyproject.toml

clean: ## remove what the other targets made
	@[ ! -f "$(VENV)/pyvenv.cfg" ] || rm -rf "$(VENV)"
	@rm -rf bench/.venv bench/node/node_modules bench/results/quick
	@rm -rf .venv-docs site
	@rm -rf build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	@find src sim tests tools spec -name __pycache__ -type d -prune -exec rm -rf {} +

check-format: ready-dev
	@echo "check: format (ruff)"
	@$(python) -m ruff format --check --output-format concise .

check-lint: ready-dev
	@echo "check: lint (ruff)"
	@$(python) -m ruff check --quiet .

check-layers: ready-dev
	@echo "check: layers"
	@$(python) -m pytest -q --no-header tests/tooling/project/test_layers.py tests/tooling/project/test_circles.py

check-mypy: ready-dev
	@echo "check: types (mypy)"
	@$(python) -m mypy --no-error-summary

check-pyright: ready-dev
	@echo "check: types (pyright)"
	@$(python) -m pyright --pythonpath $(python)
	@told=$$(PYTHONPATH=src $(python) -m pyright --verifytypes quorlock --ignoreexternal) || \
		{ echo "$$told"; exit 1; }

check-docs: ready-dev
	@echo "check: docs (every snippet, command and link)"
	@$(python) -m tools.snippets

ready-demo ready-test ready-dev: ready-%:
	@tools/setup $*
