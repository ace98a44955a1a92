# The two commands of a new user are `make train` and `make test`; every target makes .venv if need be.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK = 1
# Tests start many processes; without bytecode each would compile all sources anew.
unexport PYTHONDONTWRITEBYTECODE

# What CI kills once: further kinds of replay and of learners are those of `make test-faults`.
MORE_KILLS := on-policy- or uniform- or n-step- or hindsight- or temperature- or delayed or pass- or 1-False or noise
# Which part of the long tests runs: `commit` lets the commit's hash choose one, a number names one, `all` is every part.
PART ?= commit
MORE_OPTIONS := tests/product tests/export tests/eject tests/trainer/test_trainer_determinism.py tests/rollout/test_rollout_evaluation.py

.PHONY: setup setup-dev train test test-faults test-kills test-long test-product test-learning test-site test-dist gpu lint bench bench-start pages docs dist clean
.DEFAULT_GOAL := train

$(VENV)/.core: pyproject.toml requirements/constraints.txt
	@echo "Installing torch and Lockstep into $(VENV): one to three minutes, longer if the download is slow."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet torch==2.13.0
	$(BIN)/python -m pip install --quiet --constraint requirements/constraints.txt --editable '.[plot]'
	@touch $@

$(VENV)/.dev: $(VENV)/.core packages/lockstep-sb3/pyproject.toml
	@echo "Installing the packages of the tests into $(VENV): some minutes."
	$(BIN)/python -m pip install --quiet --constraint requirements/constraints.txt --editable '.[dev]' --editable packages/lockstep-sb3
	$(BIN)/python -m pip install --quiet --no-deps MinAtar==1.0.15 # it asks for plotting packages that games do not use
	@touch $@

setup: $(VENV)/.core        ## core and plotting
setup-dev: $(VENV)/.dev     ## and what the tests, lint and benchmarks need

train: $(VENV)/.core        ## PPO on CartPole-v1 until the mean evaluation return is 475 or more
	$(BIN)/lockstep train ppo CartPole-v1 --stop-return 475

test: $(VENV)/.dev          ## the fast suite
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist load

test-faults: $(VENV)/.dev   ## kills real processes again and again, many minutes
	$(BIN)/python -m pytest -m faults --timeout 0

test-kills: $(VENV)/.dev    ## the few of them that CI runs: real processes killed at any moment
	$(BIN)/python -m pytest -m faults -k "(kill or raises or two_env_runners) and not ($(MORE_KILLS))"

test-long: $(VENV)/.dev     ## a part of the long tests, chosen by the commit, and all examples of properties; PART=all: all parts
	$(BIN)/python -m pytest -m '(long or hypothesis) and not faults' --part $(PART) --hypothesis-profile full --numprocesses auto --maxprocesses 4

test-product: $(VENV)/.dev  ## every pair of options of every algorithm learns a small task, or is exported
	$(BIN)/python -m pytest -m 'long or exhaustive' $(MORE_OPTIONS) --numprocesses auto --maxprocesses 4

test-learning: $(VENV)/.dev ## trains on real environments, many minutes
	$(BIN)/python -m pytest -m learning -s --timeout 0

# `make test-dist PYTHONS="3.11 3.12 3.13"` uses the packages on each of these versions; 3 GB of downloads for another one.
test-dist: $(VENV)/.dev     ## builds the packages, installs them into an empty environment, trains and type-checks there
	$(BIN)/python -m pytest -m release -rs tests/release

gpu: $(VENV)/.dev           ## on a machine with a CUDA device (and a torch that knows it): its tests and figures, 20 minutes at most
	$(BIN)/python -m pytest -m cuda tests/gpu
	$(BIN)/python benchmarks/gpu/measure.py

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.dev         ## Lockstep beside its peers; installs each peer in an environment of its own
	$(BIN)/python benchmarks/peers/setup_peers.py
	$(BIN)/python benchmarks/speed/train_speed.py ppo

bench-start: $(VENV)/.dev   ## the table of docs/speed.md: training by default beside Stable-Baselines3 and RLlib, twenty minutes
	$(BIN)/python benchmarks/peers/setup_peers.py sb3 rllib
	$(BIN)/python benchmarks/speed/start_speed.py --whole ppo

pages: $(VENV)/.core        ## what is written from the code: keyword types, docs/reference.md, walks, what works with what
	$(BIN)/python tests/architecture/algorithm_list.py
	$(BIN)/python tests/architecture/keyword_types.py
	$(BIN)/python -m lockstep.cli list --markdown > docs/reference.md
	$(BIN)/python tests/architecture/walks.py
	$(BIN)/python tests/architecture/moved_table.py
	PYTHONPATH=tests $(BIN)/python tests/product/cover.py
	$(BIN)/python docs/tables.py

docs: $(VENV)/.dev          ## the site, in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

test-site: docs             ## search, API reference and requests of the built site
	$(BIN)/python -m pytest -m site tests/docs

dist: $(VENV)/.dev          ## dist/: an sdist and a wheel of the library and of each package beside it
	$(BIN)/python -m build
	$(BIN)/python -m build --outdir dist packages/lockstep-sb3

clean:
	rm -rf $(VENV)
