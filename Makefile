# `make quickstart` runs a small sweep; CI runs `make check test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
ROOMS := storage trials analysis orchestrator quickstart
STORE ?= quickstart-store
FIGURES := benchmarks/results

.PHONY: help setup quickstart quickstart-model fmt check test test-plain test-ray test-all test-cluster bench gpu-bundle dist clean

help:
	@echo "setup quickstart quickstart-model fmt check test test-all test-cluster bench gpu-bundle dist clean"

setup: $(VENV)/.ready

# torch first: the constraint picks a CPU build that the registry offers, and nothing later replaces it
$(VENV)/.package: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "lp-sweep needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

# packages for development
$(VENV)/.ready: $(VENV)/.package
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

quickstart: $(VENV)/.package
	$(BIN)/lp-sweep run quickstart --store $(STORE)
	$(BIN)/lp-sweep measure --task toy-sentiment --as onnx-int8 --seconds 0.5 --store $(STORE) --file quickstart
	$(BIN)/lp-sweep export --best --fastest --task toy-sentiment --store $(STORE) --file quickstart --out $(STORE)-smaller --force
	$(BIN)/lp-sweep report --store $(STORE) --out $(STORE)-report.html
	@echo
	@echo "Open in a browser:    file://$(abspath $(STORE)-report.html)"
	@echo "All scores:           $(BIN)/lp-sweep table tasks --store $(STORE)"
	@echo "The smaller network:  $(BIN)/python $(STORE)-smaller/predict.py 'the film was hardly lovely'"
	@echo "Your own data:        $(BIN)/lp-sweep run --data FILE --out smaller"

quickstart-model: setup
	$(BIN)/python -m benchmarks.toy_language.build

fmt: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# links that look like the installed folders, for tools that read files and not the environment.
# import-linter can read a package in parts only if its folder has nothing else
build/ns/.ready: Makefile $(wildcard api/*.py)
	mkdir -p build/ns/lp_sweep build/parts/lp_sweep
	for room in $(ROOMS); do ln -sfn ../../../$$room build/ns/lp_sweep/$$room; ln -sfn ../../../$$room build/parts/lp_sweep/$$room; done
	for file in $(notdir $(wildcard api/*.py)); do ln -sfn ../../../api/$$file build/ns/lp_sweep/$$file; done
	touch $@

check: setup build/ns/.ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy -p lp_sweep -p benchmarks
	PYTHONPATH=build/parts $(BIN)/lint-imports

# tests with Ray mostly wait and the others compute, so both run at the same time
test: setup
	$(MAKE) -j2 --output-sync=line test-plain test-ray

# worksteal: tests of one file mostly stay in one process, so its fixtures are made once
test-plain: setup
	$(BIN)/python -m pytest -m "not slow and not gpu and not ray" -n auto --dist worksteal

# only files with such tests: to collect all the others would take too long
test-ray: setup
	$(BIN)/python -m pytest -m "not slow and not gpu and ray" -n 2 --dist loadfile $$(grep -rl 'mark\.ray' tests --include='test_*.py')

test-all: test test-cluster
	$(BIN)/python -m pytest -m "(slow or gpu) and not ray" -n auto
	$(BIN)/python -m pytest -m "(slow or gpu) and ray" -n 3 --dist loadfile
	$(BIN)/python -m pytest -m "hypothesis and not slow" --hypothesis-profile=long -n auto

# the environment of a cluster node: Ray with its launcher, in addition to the packages here
CLUSTER := build/cluster-env
$(CLUSTER)/.ready: $(VENV)/.ready
	$(PYTHON) -m venv $(CLUSTER)
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > $(CLUSTER)/project
	cp $(CLUSTER)/project $$($(CLUSTER)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/project.pth
	$(CLUSTER)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps --ignore-installed ray
	$(CLUSTER)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt 'ray[default]'
	touch $@

# three machines made of namespaces that run sshd: needs root and Debian packages
test-cluster: setup $(CLUSTER)/.ready
	command -v sshd rsync ip slurmctld munged > /dev/null || { test "$$(id -u)" = 0 && apt-get install -y -q openssh-server rsync iproute2 slurm-wlm munge; } || true
	LP_SWEEP_CLUSTER_PYTHON=$(abspath $(CLUSTER))/bin/python $(BIN)/python -m pytest tests/orchestrator/cluster/test_real_cluster.py tests/orchestrator/cluster/test_slurm.py -q

# MODEL: a folder with a BERT, such as all-MiniLM-L6-v2. GLUE: a folder with sst2/train.parquet, ...
# DATA, if there is one: a folder with wnut17/ and cranfield/
bench: setup
	@test -d "$(MODEL)" && test -d "$(GLUE)" || { echo "make bench MODEL=folder GLUE=folder: see benchmarks/README.md"; exit 2; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check accelerate
	mkdir -p $(FIGURES)
	$(BIN)/python -m benchmarks.trial_cpu --model $(MODEL) --data-dir $(GLUE) --out $(FIGURES)/trial-cpu.json
	test -z "$(DATA)" || $(BIN)/python -m benchmarks.kind_steps --model $(MODEL) --data-dir $(GLUE) --more $(DATA) --out $(FIGURES)/kind-steps.json
	$(BIN)/python -m benchmarks.parity --model $(MODEL) --data-dir $(GLUE) --runs $(FIGURES)/parity-runs.jsonl --out $(FIGURES)/parity.json
	$(BIN)/python -m benchmarks.sweep_cpu --model $(MODEL) --data-dir $(GLUE) --repeats 2 --out $(FIGURES)/sweep-cpu.json
	$(BIN)/python -m benchmarks.sweep_cpu --quickstart --out $(FIGURES)/sweep-quickstart.json
	$(BIN)/python -m benchmarks.between_trials --model $(MODEL) --data-dir $(GLUE) --out $(FIGURES)/between-trials.json
	$(BIN)/python -m benchmarks.between_trials --model $(MODEL) --data-dir $(GLUE) --tasks rte mrpc --k 0 1 --seeds 1 --rows 1500 --out $(FIGURES)/slot-busy.json
	$(BIN)/python -m benchmarks.resident_memory --out $(FIGURES)/resident-memory.json
	$(BIN)/python -m benchmarks.driver_overhead --out $(FIGURES)/driver-overhead.json
	$(BIN)/python -m benchmarks.at_scale --out $(FIGURES)/at-scale.json
	$(BIN)/python -m benchmarks.scale --out $(FIGURES)/scale.json
	$(BIN)/python -m benchmarks.speed_by_depth --model $(MODEL) --rounds 1 --out $(FIGURES)/speed-by-depth.json
	$(BIN)/python -m benchmarks.adaptive --out $(FIGURES)/adaptive.json
	$(BIN)/python -m benchmarks.coverage --out $(FIGURES)/coverage.json
	$(BIN)/python -m benchmarks.report

# the folder that benchmarks/gpu_day.py needs on a GPU machine without a network: tokens, shapes, wheels
gpu-bundle: setup
	@test -d "$(MODEL)" && test -d "$(GLUE)" || { echo "make gpu-bundle MODEL=folder GLUE=folder: see benchmarks/README.md"; exit 2; }
	$(BIN)/python -m benchmarks.gpu_bundle --model $(MODEL) --data-dir $(GLUE) --out .gpu

# the source archive and its wheel, of the same bytes whoever makes them: see RELEASING.md. Needs GNU tar
dist: export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct)
dist: setup
	rm -rf dist
	$(BIN)/python -m build --sdist --no-isolation --outdir dist .
	tar xzf dist/*.tar.gz -C dist && mv dist/*/ dist/source && chmod -R u=rwX,go=rX dist/source
	name=$$(basename dist/*.tar.gz .tar.gz) && tar c -C dist source --transform="s/^source/$$name/" --sort=name \
	    --mtime=@$$SOURCE_DATE_EPOCH --owner=0 --group=0 --numeric-owner | gzip -9n > dist/$$name.tar.gz
	umask 022 && $(BIN)/python -m build --wheel --no-isolation --outdir dist dist/source
	rm -r dist/source

clean:
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache *.egg-info
