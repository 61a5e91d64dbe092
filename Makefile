# Commands for developers. Everything runs from .venv, which `make setup` creates from pinned requirements.
.DEFAULT_GOAL := help
BIN := .venv/bin
TESTS = tests/tidy tests/unit
# Keep byte code even if the environment forbids it. Without it, each test worker and each Shoal that a test starts
# would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup run test report check check-types check-tests fmt types rows bench chaos soak fuzz mutants lock release

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "make %-7s %s\n", $$1, $$2}' Makefile

setup: ## install everything into .venv, if it is not current
	@scripts/setup.sh

run: setup ## start Shoal; pass options with make run ARGS="--port 9000"
	@trap : INT; $(BIN)/shoal run $(ARGS); code=$$?; [ $$code -eq 130 ] || exit $$code

test: setup ## run all tests
	@scripts/test-deps.sh
	@exec $(BIN)/pytest -n $${TEST_WORKERS:-4} --dist loadgroup -rs $(ARGS)

check: setup ## check format, lint, types, layers and code shape, and run the fast unit tests; make check TESTS= omits the tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo --cache-dir .import_linter_cache
	@$(MAKE) --no-print-directory --jobs=2 --keep-going check-types check-tests

check-types: # the product, strictly; then, by a faster checker, the tests, the examples and the bench
	$(BIN)/basedpyright
	$(BIN)/pyrefly check --min-severity warn

check-tests:
	$(if $(TESTS),$(BIN)/pytest -q -n 4 --dist loadgroup -m "not slow" $(ARGS) $(TESTS))

fmt: setup ## format the code and apply automatic fixes
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

types: setup ## check only the types of the product; make types ARGS="src/shoal/turn"
	@$(BIN)/basedpyright $(ARGS)

report: setup ## print sizes, imports and the path of a message through the code
	@$(BIN)/python -m tests.tidy.report

rows: setup ## test every feature on a running Shoal, and print a table of results
	@scripts/test-deps.sh
	@exec $(BIN)/pytest -q -rfE -n $${TEST_WORKERS:-4} --dist loadgroup $(ARGS) tests/rows

bench: setup ## measure; prints the results and stores them in bench/results
	@exec $(BIN)/python -m bench $(ARGS)

chaos: setup ## kill, freeze and restart a running system, and check that it loses nothing
	@exec $(BIN)/python -m tests.chaos $(ARGS)

soak: setup ## run a steady load for half an hour, and report whether memory and other resources grow
	@exec $(BIN)/python -m tests.chaos.soak $(ARGS)

fuzz: setup ## run the property tests with many more examples
	@exec $(BIN)/python -m tests.fuzz $(ARGS)

mutants: setup ## change the core in small ways, and list the changes that no test notices; ARGS="--sample 60 --seed 1 src/shoal/turn"
	@scripts/counterpart.sh mutants
	@PYTHONPATH=build/mutants/python exec $(BIN)/python -m tests.mutants $(ARGS)

lock: setup ## pin requirements/ from pyproject.toml; ARGS=--upgrade selects the newest versions
	@scripts/lock.sh $(ARGS)

release: setup ## build and test the files of a release in dist/; make release TAG=v0.1.0 also checks the version
	@scripts/release.sh $(TAG)
