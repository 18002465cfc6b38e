# Each target sets up what it needs; `make` alone lists them.
PYTHON ?= python3
BIN := .venv/bin
CORE := setup.py $(wildcard src/pof/core/*)

.DEFAULT_GOAL := help
.PHONY: help setup demo browser docs test check format sanitize bench dist clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: .venv/ready ## the virtual environment in .venv, from pyproject.toml and constraints.txt

.venv/ready: pyproject.toml constraints.txt $(CORE)
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch .venv/small $@

# The demo needs neither linters nor the libraries of others that the tests use.
.venv/small: pyproject.toml constraints.txt $(CORE)
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[plot,train,data]'
	@touch $@

demo: .venv/small ## one file of a CIFAR-10 network at every size, in about a minute (after the set-up)
	@$(BIN)/pof demo

browser: ## Chromium, for the tests of the report page: installed where that is allowed, else named
	@if ! { command -v chromium && command -v chromedriver; } >/dev/null 2>&1; then \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
			apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends chromium chromium-driver >/dev/null; \
		fi; \
		{ command -v chromium && command -v chromedriver; } >/dev/null 2>&1 || echo "no Chromium: the tests of the report page are skipped; install chromium and chromium-driver"; \
	fi

docs: setup ## the documentation site, in build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

test: setup browser ## all tests, with coverage
	$(BIN)/python -m pytest --numprocesses 2 --dist worksteal --durations 25 --durations-min 5 --cov --cov-report term

check: setup docs ## what CI runs: site, format, lint, types, tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(MAKE) --no-print-directory test

format: setup ## rewrite the code in the house format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

sanitize: setup ## the tests of file and runtime with the C core under AddressSanitizer and UBSan
	mkdir -p build
	$(CC) -O1 -g -Wall -Wextra -Werror -fsanitize=address,undefined -fno-sanitize-recover=undefined -Wno-unknown-pragmas -shared -fPIC \
		$(filter-out %/module.c,$(wildcard src/pof/core/*.c)) -o build/core.so
	POF_CORE=build/core.so ASAN_OPTIONS=detect_leaks=0 \
		LD_PRELOAD="$$($(CC) -print-file-name=libasan.so) $$($(CC) -print-file-name=libubsan.so)" \
		$(BIN)/python -m pytest tests/file tests/runtime/test_kernels.py tests/test_fast_rows.py tests/test_winograd.py

bench: setup ## the measured bars, as JSON in results/; leave the machine alone meanwhile
	mkdir -p build
	$(BIN)/python bench/switch_sparsity.py > build/switch_sparsity.json
	$(BIN)/python bench/training_step.py > build/training_step.json
	$(BIN)/python bench/training_throughput.py > build/training_throughput.json
	$(BIN)/python bench/training_throughput.py --threads 1 > build/training_throughput_one_thread.json
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[bench]'
	$(BIN)/python bench/file_size.py > build/file_size.json
	$(BIN)/python bench/stored_statistics.py > build/stored_statistics.json
	$(BIN)/python bench/runtime.py > build/runtime.json
	$(BIN)/python bench/scopes.py > build/scopes.json
	$(BIN)/pof demo --json > build/demo.json
	$(BIN)/pof demo digits --json > build/demo_digits.json
	mv build/*.json results/
	cat results/switch_sparsity.json results/training_step.json

dist: setup ## wheel and sdist in dist/, each installed and tried in an environment of its own
	$(BIN)/python tools/check_dist.py

clean: ## remove the virtual environment and what tools left behind
	rm -rf .venv .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist src/*.egg-info src/pof/*.so
