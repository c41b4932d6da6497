# `make run` runs the main job, and `make test` the tests. Both first create the environment, which needs
# Python 3.11+, Java 17+ and, once, network access. PYTHON=/path/to/python3.12 selects another interpreter.

PYTHON ?= python3
BIN := .venv/bin
UV_VERSION = $(shell sed -n 's/^uv==\([0-9.]*\).*/\1/p' requirements.lock)
# Three groups start together: those with Airflow, with the Spark session and with the object store, which mostly wait for other
# processes. A fourth process runs the remaining tests (tests/conftest.py), so that both cores are busy. More tests of the long form wait
# for deadlines.
PROCESSES := --dist=loadgroup --numprocesses
# Tests of imports, architecture, docstrings and pages, which are a step of lint.
PAGES := tests/test_*.py
NO_PAGES := --ignore-glob='tests/test_*.py'
# The first run leaves its bytecode for the next one, even in containers that disable bytecode.
export PYTHONDONTWRITEBYTECODE =
say = { echo "tidegate: $(1)" >&2; exit 1; }

.PHONY: run test tested test-fast quickly-tested test-long test-matrix prove oracle cluster compiled quiet-lint lint docs picture frozen bench bench-full env lock clean
.DEFAULT_GOAL := run

run: compiled .venv/ready
	@$(BIN)/tidegate demo $(DEMO)

# The checks of lint run in parallel with the tests, which leave part of the second core idle.
test: compiled .venv/ready
	@$(MAKE) --no-print-directory --jobs=2 quiet-lint tested

tested:
	$(BIN)/pytest $(PROCESSES)=4 -m "not long" --durations=20 $(NO_PAGES)

test-long: compiled lint .venv/ready
	TIDEGATE_EXAMPLES=$${TIDEGATE_EXAMPLES:-2000} $(BIN)/pytest $(PROCESSES)=3 $(NO_PAGES) --hypothesis-profile=thorough

# For every change: the tests that need neither Spark nor Airflow, and run no pipeline over tables.
test-fast: compiled
	@$(MAKE) --no-print-directory --jobs=2 quiet-lint quickly-tested

quickly-tested:
	$(BIN)/pytest --numprocesses=2 -q -m "not (spark or airflow or browser or slow or long)" $(NO_PAGES)

# The Spark tests with each pair of Spark and Delta versions, one after the other, each in its own environment: about ten minutes
# and 1.7 GB per pair. MATRIX="4.0.5 -- tests/spark/test_sql.py" selects versions and tests.
test-matrix: .venv/made
	@$(BIN)/python -m tests.matrix $(MATRIX)

# The model of the protocol (docs/proof.md), in small bounds or with BOUNDS=wide. `make test` leaves the largest scopes to `make test-long`.
prove: .venv/made
	@$(BIN)/python -m formal $(BOUNDS)

# Random scenarios with the operators of Flink and the triggers of Beam, and with ours (docs/proof.md). Needs Maven, a Java compiler
# and, once, network access. ORACLE="flink 500" selects one of them and the number of scenarios.
oracle: .venv/made
	@$(BIN)/python -m tests.oracle $(ORACLE)

# Otherwise, where PYTHONDONTWRITEBYTECODE is set, as in many containers, each command, task and worker would compile all the code again.
compiled: .venv/made
	@$(BIN)/python -m compileall -q windowing pipelines expectations tests

# Its output is printed at its end, so that it does not mix with that of the tests.
quiet-lint: .venv/made
	@shown=$$($(MAKE) --no-print-directory lint 2>&1); code=$$?; printf "%s\n" "$$shown"; exit $$code

lint: .venv/made
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/codespell
	$(BIN)/mypy
	$(BIN)/pytest -q $(PAGES)

# Warnings are errors: a broken link, a docstring that can't be parsed. The first build needs npm and network access, for Mermaid, which
# draws the diagrams.
docs: .venv/made
	@$(BIN)/sphinx-build --quiet --fail-on-warning --jobs=2 docs .work/site
	@echo "tidegate: the site is .work/site/index.html"

# The cluster of docker-compose.yml: its images are built, its services started, killed and upgraded. Needs a container engine, and about
# an hour. CLUSTER="tests/cluster/test_main_job.py" selects tests.
cluster: .venv/made
	$(BIN)/pytest -v $(or $(CLUSTER),tests/cluster)

# The picture of the README: two minutes with Spark, then a screenshot of the report by Chromium.
# Writes the frozen warehouse of the newest format again, while its version is not released (tests/frozen).
frozen: .venv/ready
	$(BIN)/python -m tests.frozen.warehouse_0_3

picture: .venv/ready
	$(BIN)/python -m tests.browser.picture

bench: .venv/ready
	$(BIN)/python -m benchmarks

bench-full: .venv/ready
	$(BIN)/python -m benchmarks --full

env: .venv/ready

.venv/made: requirements.lock tests/store/requirements.lock pyproject.toml
	@command -v $(PYTHON) >/dev/null || $(call say,no $(PYTHON) found: install Python 3.11 or newer or name one: make PYTHON=/path/to/python3)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || $(call say,$(PYTHON) is $$($(PYTHON) -V): install Python 3.11 or newer or name one: make PYTHON=/path/to/python3)
	@java=$${JAVA_HOME:+$$JAVA_HOME/bin/}java; command -v $$java >/dev/null || $(call say,no Java found: install Java 17 or newer or set JAVA_HOME); \
	    found=$$($$java -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p'); [ "$${found:-0}" -ge 17 ] || $(call say,$$java is Java $$found: Spark needs 17 or newer; install one or set JAVA_HOME)
	@$(PYTHON) -m venv .venv || $(call say,$(PYTHON) -m venv failed: install Python with its venv module (python3-venv on Debian))
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION) || $(call say,uv $(UV_VERSION) cannot be installed: creating the environment needs access to PyPI once)
	@# Compiled once here, because every task and command starts its own interpreter.
	@$(BIN)/uv pip sync --python $(BIN)/python --require-hashes --compile-bytecode --quiet requirements.lock || $(call say,the packages in requirements.lock cannot be installed: creating the environment needs access to PyPI once)
	@$(BIN)/uv pip install --python $(BIN)/python --no-deps --no-build-isolation --quiet --editable .
	@# The S3 server of the tests needs an older python-dateutil than Airflow.
	@$(BIN)/uv venv --allow-existing --quiet --python $(BIN)/python .venv/store && \
	    $(BIN)/uv pip sync --python .venv/store/bin/python --require-hashes --quiet tests/store/requirements.lock || $(call say,the packages in tests/store/requirements.lock cannot be installed: creating the environment needs access to PyPI once)
	@touch $@

.venv/ready: .venv/made
	@$(BIN)/tidegate setup
	@touch $@

COMPILE = $(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
    --custom-compile-command "make lock" --quiet

lock:
	$(COMPILE) --all-extras --output-file requirements.lock pyproject.toml
	$(COMPILE) --output-file tests/store/requirements.lock tests/store/requirements.in

clean:
	rm -rf .venv .work .mypy_cache .ruff_cache .pytest_cache .hypothesis
