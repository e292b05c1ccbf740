# Shortcuts; each line is what CI runs, or calls it.
.PHONY: help install smoke test lint docs bench

help: ## This list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

install: ## Octavo and what its tests need, from this folder
	pip install -e '.[test]'

smoke: ## A test of each kind of thing: two minutes on two cores
	python -m pytest -m smoke

test: ## The tests that run by default
	python -m pytest

lint: ## Style, types, the order of imports, generated pages
	.ci/linters

docs: ## Write the generated pages, and build the site in site/
	for page in docs bench demo_table maps methods; do python tools/gen_$$page.py; done
	.ci/docs

bench: ## Products and single ops on this machine
	octavo bench gemm
	octavo bench ops
