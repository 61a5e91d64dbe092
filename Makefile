# The developer's commands. Everything runs from .venv, which `make setup` makes from pinned requirements.
.DEFAULT_GOAL := help
BIN := .venv/bin
TESTS = tests/tidy tests/unit
# Byte code is kept even where the environment forbids it: without it every test worker, and every Shoal that a test
# starts, compiles all of its modules anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup run test report check check-types check-tests fmt types rows bench chaos soak fuzz mutants lock release

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "make %-7s %s\n", $$1, $$2}' Makefile

setup: ## install everything into .venv (does nothing when it is current)
	@scripts/setup.sh

run: setup ## start Shoal; make run ARGS="--port 9000" passes options on
	@trap : INT; $(BIN)/shoal run $(ARGS); code=$$?; [ $$code -eq 130 ] || exit $$code

test: setup ## the whole test suite
	@scripts/test-deps.sh
	@exec $(BIN)/pytest -n $${TEST_WORKERS:-4} --dist loadgroup -rs $(ARGS)

check: setup ## format, lint, types, layers, code shape and fast unit tests; make check TESTS= leaves the tests out
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo --cache-dir .import_linter_cache
	@$(MAKE) --no-print-directory --jobs=2 --keep-going check-types check-tests

check-types: # the product, strictly; then, by a faster checker, the tests, the examples and the bench
	$(BIN)/basedpyright
	$(BIN)/pyrefly check --min-severity warn

check-tests:
	$(if $(TESTS),$(BIN)/pytest -q -n 4 --dist loadgroup -m "not slow" $(ARGS) $(TESTS))

fmt: setup ## format and fix what can be fixed
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

types: setup ## types of the product alone; make types ARGS="src/shoal/turn"
	@$(BIN)/basedpyright $(ARGS)

report: setup ## print what the code costs a reader: sizes, imports, the path of a message
	@$(BIN)/python -m tests.tidy.report

rows: setup ## every promise tried from outside, on a running Shoal: a table of what works, with seconds
	@scripts/test-deps.sh
	@exec $(BIN)/pytest -q -rfE -n $${TEST_WORKERS:-4} --dist loadgroup $(ARGS) tests/rows

bench: setup ## measure; results are printed and kept in bench/results
	@exec $(BIN)/python -m bench $(ARGS)

chaos: setup ## kill, freeze and restart a running system, and check that nothing is lost
	@exec $(BIN)/python -m tests.chaos $(ARGS)

soak: setup ## a steady load for half an hour; says whether memory and the like stay flat
	@exec $(BIN)/python -m tests.chaos.soak $(ARGS)

fuzz: setup ## property tests with many more examples
	@exec $(BIN)/python -m tests.fuzz $(ARGS)

mutants: setup ## change the core in small ways and list what no test notices; ARGS="--sample 60 --seed 1 src/shoal/turn"
	@scripts/counterpart.sh mutants
	@PYTHONPATH=build/mutants/python exec $(BIN)/python -m tests.mutants $(ARGS)

lock: setup ## pin requirements/ again from pyproject.toml; ARGS=--upgrade takes the newest
	@scripts/lock.sh $(ARGS)

release: setup ## build and try everything that a release publishes, in dist/; make release TAG=v0.1.0 checks the version
	@scripts/release.sh $(TAG)
