.PHONY: setup
setup: ## install everything into .venv
	@scripts/setup.sh
