# For a fresh machine: `make demo` in some minutes, and `make test` in four or more. They honour an existing pip configuration.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

# bytecode is kept even where the environment forbids it: each worker, and each command that a test starts, would else
# compile all files anew, which takes as long as a tenth of the tests
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -q -n 2 --dist worksteal

# of the tests, without ray, which is heavy and does not depend on PyTorch
EXTRAS := dev,dashboard,docs,imdb,oracles,slurm,transformers,translation,triton

.PHONY: demo test test-all soak ends gpu wheels releases docs lint clean

# torch goes first and alone, at the pinned version, so that nothing after it can pull another build
$(VENV)/.torch: constraints.txt
	$(PYTHON) -m venv $(VENV)
	@echo 'Installing PyTorch and the rest takes some minutes, in which pip prints nothing.'
	$(PIP) install --quiet --constraint constraints.txt torch
	touch $@

$(VENV)/.demo: $(VENV)/.torch pyproject.toml
	$(PIP) install --quiet --constraint constraints.txt --editable '.[imdb,dashboard]'
	touch $@

$(VENV)/.test: $(VENV)/.torch pyproject.toml
	$(PIP) install --quiet --constraint constraints.txt --editable '.[$(EXTRAS),ray]'
	touch $@

$(VENV)/.docs: $(VENV)/.torch pyproject.toml
	$(PIP) install --quiet --constraint constraints.txt --editable '.[docs]'
	touch $@

demo: $(VENV)/.demo
	$(BIN)/attnbench run --suite demo --results results/local/demo
	@echo
	@echo 'softmax and entmax15 recall nearly everything after 300 steps; linear and local attention do not, and one seed ranks nothing.'
	@echo 'The same pairs with three seeds and longer training, for ranks: $(BIN)/attnbench run --suite synthetic-short'
	@echo 'One page on a variant of your own, in minutes: $(BIN)/attnbench judge NAME'
	@echo 'This board again: $(BIN)/attnbench leaderboard --results results/local/demo --notes'

test: $(VENV)/.test
	$(PYTEST) -m "not slow and not soak"

# the slow tests among all others: to collect the tests again would take half a minute
test-all: $(VENV)/.test
	$(PYTEST) -m "not soak"

# all hostile folders, plugins and commands, the clusters and the long compiles; `make soak SEED=…` repeats a run
ifndef SEED
SEED := $(shell $(PYTHON) -c 'import secrets; print(secrets.randbelow(1_000_000))')
endif
soak: $(VENV)/.test
	@echo 'soak: seed $(SEED), commit '$$(git rev-parse --short HEAD)', '$$(date -u +%FT%TZ)
	ATTNBENCH_TEST_SEED=$(SEED) $(PYTEST) -m soak
	@echo 'soak passed: seed $(SEED), commit '$$(git rev-parse --short HEAD)', '$$(date -u +%FT%TZ)

# the core with the oldest and the newest PyTorch that pyproject.toml allows and their Tritons, each in an environment of its
# own in build/ends, 6 GB with CUDA; then kernels with the newest Triton, which no PyTorch of the range brings. NumPy 2.4 is
# too new for the interpreter of Triton 3.6, and setuptools 82 for torch 2.11
oldest := torch==2.11.0 triton==3.6.0 numpy==2.3.5
newest := torch==2.14.1 triton==3.8.0 numpy==2.4.6
newest_triton := triton==3.9.0
CORE := variants bench/gate bench/train bench/models bench/measure bench/run golden

build/ends/%/.ready: constraints.txt pyproject.toml
	$(PYTHON) -m venv $(@D)
	grep -vE '^(torch|triton|numpy|setuptools)==' constraints.txt > $(@D)/constraints.txt
	printf '%s\n' $($*) >> $(@D)/constraints.txt
	$(@D)/bin/python -m pip install --quiet --constraint $(@D)/constraints.txt --editable '.[$(EXTRAS)]'
	touch $@

ends: build/ends/oldest/.ready build/ends/newest/.ready
	$(subst $(BIN),build/ends/oldest/bin,$(PYTEST)) -m 'not slow and not soak' $(CORE:%=tests/%)
	$(subst $(BIN),build/ends/newest/bin,$(PYTEST)) -m 'not slow and not soak' $(CORE:%=tests/%)
	build/ends/newest/bin/python -m pip install --quiet --no-deps --upgrade --target build/ends/triton $(newest_triton)
	PYTHONPATH=build/ends/triton $(subst $(BIN),build/ends/newest/bin,$(PYTEST)) -m 'not slow and not soak' \
		tests/variants/kernels/triton tests/variants/test_gate_of_kernels.py

# what a machine with a GPU is wanted for, in twenty minutes: build/gpu, a folder to send back (docs/gpu.md);
# `make gpu MINUTES=8` is for a GPU that is lent for so long
gpu: $(VENV)/.demo
	$(BIN)/python tools/gpu/everything.py --out build/gpu $(if $(MINUTES),--minutes $(MINUTES))

# wheels for Python 3.12 of what an image with torch, triton and numpy lacks, into build/wheels, to be carried there
wheels: $(VENV)/.demo
	$(BIN)/python tools/gpu/gather_wheels.py --out build/wheels adasplash

# the code of this checkout and of its results, added to bench/wings/sharing/releases.toml: `validate` takes no other under
# the name of a built-in variant
releases: $(VENV)/.demo
	$(BIN)/python -m attnbench.bench.wings.sharing.releases

# the site, in build/docs, without network; a link or an anchor that does not hold is an error
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

lint: $(VENV)/.test
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

clean:
	rm -rf $(VENV) build *.egg-info
