# Each target sets up what it needs; `make` alone lists them.
PYTHON ?= python3
BIN := .venv/bin
CLANG ?= clang-14
SECONDS ?= 600
TABLE ?= all
CORE := setup.py $(wildcard src/pof/core/*)

.DEFAULT_GOAL := help
.PHONY: help setup demo browser foreign docs test test-wide coverage check format sanitize clang fuzz bench reproduce dist clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: .venv/ready ## the virtual environment in .venv, from pyproject.toml and constraints.txt

.venv/ready: pyproject.toml constraints.txt $(CORE)
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch .venv/small $@

# The demo needs neither linters nor the libraries that only the tests use.
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

foreign: .venv/foreign/ready ## timm and torchvision, for test-wide and bench/breadth.py, beside the torch that is there

# A folder of its own, and no dependencies: torch stays as it is, and no other package finds torchvision unasked.
.venv/foreign/ready: constraints.txt | .venv/ready
	$(BIN)/python -m pip install --quiet --no-deps --upgrade --constraint constraints.txt --target .venv/foreign timm torchvision
	@touch $@

docs: setup ## the documentation site, in build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

test: setup browser ## all tests
	$(BIN)/python -m pytest --numprocesses 2 --dist worksteal --durations 10 --durations-min 5

test-wide: setup ## real networks of torchvision, timm and transformers: those that cannot be installed are named and skipped
	@$(MAKE) --no-print-directory foreign || echo "timm and torchvision cannot be installed here: their tests are skipped"
	$(BIN)/python -m pytest tests/wide -rs --durations 10 --durations-min 5

coverage: setup browser ## all tests, and which lines they reach: half as long again
	$(BIN)/python -m pytest --numprocesses 2 --dist worksteal --cov --cov-report term

check: setup docs ## what CI runs: site, format, lint, types, fuzzing for 20 seconds, tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(MAKE) --no-print-directory fuzz SECONDS=20
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
		$(BIN)/python -m pytest tests/file tests/core tests/runtime/test_kernel_calls.py tests/sphere/test_compiled_rows.py tests/trainer/test_winograd.py

clang: ## clang, for fuzzing: installed where that is allowed, else named
	@if ! command -v $(CLANG) >/dev/null 2>&1; then \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
			apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends clang-14 libclang-rt-14-dev >/dev/null; \
		fi; \
		command -v $(CLANG) >/dev/null 2>&1 || echo "no $(CLANG): nothing is fuzzed; install clang-14 and libclang-rt-14-dev"; \
	fi

fuzz: clang ## the decoder of foreign bytes under libFuzzer and AddressSanitizer; SECONDS=600 by default
	@mkdir -p build/fuzz
	@if command -v $(CLANG) >/dev/null 2>&1; then \
		$(PYTHON) tests/core/fuzz/make_seeds.py build/fuzz/seeds && \
		$(CLANG) -O1 -g -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined \
			tests/core/fuzz/inflate.c src/pof/core/inflate.c -o build/fuzz/inflate && \
		mkdir -p build/fuzz/found && \
		build/fuzz/inflate -max_total_time=$(SECONDS) -max_len=4096 -verbosity=0 -print_final_stats=1 \
			-artifact_prefix=build/fuzz/ build/fuzz/found build/fuzz/seeds >build/fuzz/log 2>&1 \
			|| { tail -n 60 build/fuzz/log; exit 1; }; \
		echo "inflate.c: $$(grep -o 'executed_units: *[0-9]*' build/fuzz/log | tr -d ':a-z_ ') inputs in $(SECONDS) s, no fault"; \
	fi

bench: setup ## the measured bars, as JSON in bench/records; leave the machine alone meanwhile
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
	$(BIN)/python -m lab.digits_demo --json > build/demo_digits.json
	mv build/*.json bench/records/
	cat bench/records/switch_sparsity.json bench/records/training_step.json

reproduce: setup ## the runs behind docs/results.md that are not done yet; resumes, TABLE=instant for one table
	$(BIN)/python -m lab.reproduce $(TABLE)

dist: setup ## wheel and sdist in dist/, each installed and tried in an environment of its own
	$(BIN)/python tools/check_dist.py

clean: ## remove the virtual environment and what tools left behind
	rm -rf .venv .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist src/*.egg-info src/pof/core/*.so
