# Leasehold. `make` prints what can be made; `make demo` and `make test` set up what they need.

# The first of these that runs and is new enough. Give another with make PYTHON=python3.13 TARGET.
PYTHON ?= $(shell for each in python3.11 python3 python3.12 python3.13 python3.14; do \
	$$each -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$each && break; done)
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
TEST_READY := $(VENV)/.ready-test
DEMO_VENV  := .venv-demo
DEMO_READY := $(DEMO_VENV)/.ready
CODE   := src tests benchmarks examples proof tools

# Processes by the thousand import the same modules, and tests are rewritten before they run: all of
# that is kept, also where the environment says that Python shall keep nothing.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help

help: ## Print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# Environments: .venv of the tests, which grows into the developers', and .venv-demo of the
# demonstration. $(call install,ENVIRONMENT,EXTRA) makes one, or brings it up to date.
# - pip needs 1 GB for temporary files, and /tmp may be a part of the memory: they are in build/tmp.
# - Python compiles a module when it is first imported: here most are never.
# - PySpark has no wheel. The one that pip makes of it lives for a moment and is not compressed.
define install
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed."; exit 1; }
	@echo "Installing .[$(2)] into $(1); pip says what it does."
	@mkdir -p build/tmp/$(2)
	$(call PIP_WITH,$(2)) $(PYTHON) -m venv $(1)
	@# Older ones take 15 s longer to choose among the versions that there are.
	$(call PIP_WITH,$(2)) $(1)/bin/pip install --no-compile 'pip>=23.3'
	$(call PIP_WITH,$(2)) $(1)/bin/pip install --no-compile -c constraints.txt -e '.[$(2)]'
	@rm -rf build/tmp/$(2)
	@touch $@
endef
PIP_WITH = @TMPDIR="$(CURDIR)/build/tmp/$(1)" PIP_DISABLE_PIP_VERSION_CHECK=1 \
	DIST_EXTRA_CONFIG="$(CURDIR)/tools/quick_wheels.cfg"

$(DEMO_READY): pyproject.toml constraints.txt
	$(call install,$(DEMO_VENV),demo)

$(TEST_READY): pyproject.toml constraints.txt
	$(call install,$(VENV),test)

$(READY): $(TEST_READY) pyproject.toml constraints.txt
	$(call install,$(VENV),dev)

setup: $(READY) ## Build .venv with the `leasehold` command and all tools, compile the hot path, install the git hooks
	@sh tools/install_hooks.sh
	$(BIN)/python tools/make_compiled.py --install

demo: $(DEMO_READY) ## Run the main job: the video pipeline on a Spark cluster, an executor killed in the middle
	$(DEMO_VENV)/bin/python -m examples.video_pipeline

spark-cluster: $(READY) ## Run a Spark master and two workers on this machine
	$(BIN)/leasehold spark cluster

serve: $(READY) ## Start a server on 127.0.0.1:10001 with its data in ./data
	$(BIN)/leasehold serve

test: $(TEST_READY) ## Run the tests, but for those of `make test-long` and `make test-slow`
	$(BIN)/pytest -n 2

test-long: $(READY) ## Run the tests that take more than about half a second each
	$(BIN)/pytest -n 3 -m long

test-all: test test-long ## Run the tests of both, as CI does

test-tiers: $(TEST_READY) ## Count the tests of `make test`, `make test-long` and `make test-slow`
	$(BIN)/python tools/test_tiers.py

test-pure: $(TEST_READY) ## Run the tests on pure Python, or some: make test-pure TESTS=tests/contract
	COMPILED_LEASEHOLD=0 $(BIN)/pytest -n 2 $(TESTS)

test-pyspark: $(READY) ## Run the tests of Spark on another release: make test-pyspark PYSPARK=4.1.4
	$(BIN)/python tools/try_pyspark.py $(PYSPARK)

test-python: $(READY) ## Run most tests on another Python: make test-python VERSION=3.13
	$(BIN)/python tools/try_python.py $(VERSION)

test-slow: $(READY) ## Run the long rounds of the reliability suite
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[slow]'
	$(BIN)/pytest -m slow -s

findings: ## Show what libraries of this field do that one would not expect (needs the network)
	@for script in findings/*.sh; do echo "== $$script"; bash "$$script" || exit 1; done

proof: $(READY) ## Check what the queue promises against its model and from outside (five minutes)
	$(BIN)/python -m proof $(PARTS) $(if $(SEED),--seed $(SEED))

proof-long: $(READY) ## The same, in the sizes that take hours
	$(BIN)/python -m proof --long $(PARTS) $(if $(SEED),--seed $(SEED))

check: lint types imports docs test ## Everything that must be clean before a commit lands

lint: $(READY) ## Check style
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/python tools/tidy.py
	$(BIN)/python tools/make_sync.py --check
	$(BIN)/python tools/make_events.py --check
	$(BIN)/python tools/make_openapi.py --check

types: $(READY) ## Check types
	$(BIN)/mypy

imports: $(READY) ## Check that imports point one way
	$(BIN)/lint-imports

docs: $(READY) ## Build the documentation strictly into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: $(READY) ## Measure all that is promised beside its peers, and show it (25 minutes, 30 GB)
	-@$(MAKE) bench-cycle
	-@$(MAKE) bench-batches
	-@$(MAKE) bench-spark
	-@$(MAKE) bench-starts
	-@$(MAKE) bench-backlog
	$(BIN)/python -m benchmarks bars benchmarks/results/latest*.json

bench-cycle: $(READY) ## Measure single messages beside the peers (3 minutes)
	$(BIN)/python -m benchmarks run --suite quick --out benchmarks/results/latest.json

bench-backlog: $(READY) ## Measure with ten million messages waiting (20 minutes, 30 GB)
	$(BIN)/python -m benchmarks run --suite backlog --out benchmarks/results/latest-backlog.json

bench-starts: $(READY) ## Measure the cold starts that people wait for
	$(BIN)/python -m benchmarks.cold_starts --setup --out benchmarks/results/latest-starts.json

bench-native: $(READY) ## Measure the native API and write benchmarks/results/latest-native.json
	$(BIN)/python -m benchmarks run --suite native --out benchmarks/results/latest-native.json

bench-exactly-once: $(READY) ## Measure claims, staged sends and the cost of the event log
	$(BIN)/python -m benchmarks.exactly_once --out benchmarks/results/latest-exactly-once.json

bench-spark: $(READY) ## Measure Spark on queues beside Spark on other things
	$(BIN)/python -m benchmarks.spark --out benchmarks/results/latest-spark.json

bench-mns: $(READY) ## Measure the MNS dialect beside the Azure dialect
	$(BIN)/python -m benchmarks.mns_beside_azure --out benchmarks/results/latest-mns.json

bench-postgres: $(READY) ## Measure two servers on PostgreSQL beside pgmq
	$(BIN)/python -m benchmarks.postgres_servers --out benchmarks/results/latest-postgres.json

bench-batches: $(READY) ## Measure batches beside pgmq with its own client
	$(BIN)/python -m benchmarks.batches_beside_pgmq --out benchmarks/results/latest-batches.json

bench-console: $(READY) ## Measure the console on ten thousand queues (needs Chromium, 10 GB and 15 minutes)
	$(BIN)/python -m benchmarks.console --out benchmarks/results/latest-console.json

screenshots: $(READY) ## Take the pictures of the console anew (needs Chromium)
	$(BIN)/python -m tools.screenshots

deploy-check: $(READY) ## Check what is in deploy/ with the linters that can be had
	$(BIN)/python tools/get_helm.py
	$(BIN)/pytest tests/unit/deploy -q -rs

wheel: $(READY) ## Build the wheel, and one of the compiled hot path, and try both in an environment of their own
	$(BIN)/python tools/try_wheel.py

wheel-bare: $(READY) ## Try the wheel, and what the README says, in bare Debians, or: make wheel-bare PLACES=trixie (needs root and debootstrap)
	$(BIN)/python -m tools.try_wheel --bare
	$(BIN)/python -m tools.try_install $(PLACES)

wheels: $(READY) ## Check that all dependencies have wheels for each Python, on x86-64 and arm64
	$(BIN)/python tools/check_wheels.py

image-bare: $(READY) ## Build the image in a bare Debian, and try it (needs root, debootstrap and buildah)
	$(BIN)/python -m tools.try_image

release: $(READY) ## Make the files of a release in dist/, and try each (needs root, debootstrap and buildah)
	$(BIN)/python -m tools.release

clean: ## Remove what was made here
	rm -rf $(VENV) $(DEMO_VENV) build dist site demo-data .mypy_cache .ruff_cache .pytest_cache .hypothesis

.PHONY: findings help setup demo spark-cluster serve test test-all test-long test-tiers test-pure test-pyspark test-slow test-python proof proof-long check lint types imports docs bench bench-cycle bench-backlog bench-starts bench-native bench-exactly-once bench-batches bench-spark bench-mns bench-postgres bench-console screenshots deploy-check wheel wheel-bare clean image-bare release wheels
