# Two commands: `make lab` opens the lab, `make test` checks it. Both set up .venv first, once.
#
# Set-up and checks are `python -m labkit setup` and `test` (labkit/checkout.py), which need no make; here are only the
# search for a Python and the stamps, by which a second call does nothing. Choose another Python with `make lab PYTHON=/path/to/python`.

SHELL := /bin/sh
VENV := .venv
VENV_PYTHON := $(VENV)/bin/python
PYTHON ?=
PYTEST_ARGS ?=
GPU_ARGS ?=
MUTANTS_ARGS ?=
HOSTS ?=
SITE ?=
# pip's options for another build of torch, such as the one for CPUs; https://pytorch.org/get-started shows them.
TORCH_OPTIONS ?=
export TORCH_OPTIONS

.DEFAULT_GOAL := help
.PHONY: help lab setup check gpu test test-all lint bench mutants notebooks docs pictures site hosts clean

help:  ## show this list
	@awk -F ':.*  ## ' '/^[a-z-]+:.*  ## / {printf "  make %-10s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

lab: $(VENV)/.lab-ready  ## set up if needed, then open JupyterLab on notebooks/00_start.ipynb
	@$(VENV_PYTHON) -m labkit lab

setup: $(VENV)/.lab-ready  ## set up the lab only
	@echo "The lab is set up in $(VENV); \`make lab\` opens it."

check: $(VENV)/.lab-ready  ## check whether this machine is ready, and what to do if it is not
	@$(VENV_PYTHON) -m labkit check

# Sets nothing up: a machine with a GPU may have no Jupyter, only its own python3 with torch and numpy.
gpu:  ## run every check and recording that needs a GPU, in under 9 minutes
	@$(or $(PYTHON),$(wildcard $(VENV_PYTHON)),python3) -m labkit gpu $(GPU_ARGS)

test: $(VENV)/.test-ready  ## set up if needed, then run all checks (slow ones left out)
	@$(VENV_PYTHON) -m labkit test --pytest="$(PYTEST_ARGS)"

test-all: $(VENV)/.test-ready  ## all checks, slow ones too
	@$(VENV_PYTHON) -m labkit test --all --pytest="$(PYTEST_ARGS)"

lint: $(VENV)/.test-ready  ## ruff, codespell, mypy and the checks of the JavaScript only
	@$(VENV_PYTHON) -m ruff format --check .
	@$(VENV_PYTHON) -m ruff check .
	@$(VENV_PYTHON) -m codespell_lib
	@$(VENV_PYTHON) -m mypy
	@$(VENV_PYTHON) -m tests.javascript

bench: $(VENV)/.test-ready  ## measure speeds on this machine, as ratios
	@for script in tests/benchmarks/bench_*.py; do $(VENV_PYTHON) $$script || exit 1; done

mutants: $(VENV)/.test-ready  ## plant deliberate faults into the engine and into answers; tests and exercises must notice each
	@$(VENV_PYTHON) tests/mutants/run.py $(MUTANTS_ARGS)
	@$(VENV_PYTHON) -m tests.mutants.answers $(MUTANTS_ARGS)

notebooks: $(VENV)/.test-ready  ## write the learners' notebooks from labkit_lessons
	@$(VENV_PYTHON) notebooks/build.py

docs: $(VENV)/.test-ready  ## write docs/errors.md and docs/widgets.md, and the documentation site into build/docs
	@$(VENV_PYTHON) docs/errors.py
	@$(VENV_PYTHON) docs/widgets.py
	@NO_MKDOCS_2_WARNING=1 $(VENV_PYTHON) -m mkdocs build --quiet
	@echo "The documentation is in build/docs: open build/docs/index.html."

hosts: $(VENV)/.test-ready  ## test the lab on classroom hosts, all or HOSTS="NAME ...", into data/hosts.md
	@$(VENV_PYTHON) tests/hosts/run.py $(HOSTS)

pictures: $(VENV)/.test-ready  ## take the pictures of README and of docs/widgets.md, in a real browser
	@$(VENV_PYTHON) docs/widgets.py --pictures
	@LABKIT_REQUIRE_BROWSER=1 $(VENV_PYTHON) -m docs.pictures

site: $(VENV)/.lab-ready  ## write the lessons as static pages into site/; SITE="--lessons 01 06" writes some
	@$(VENV_PYTHON) -m labkit site site $(SITE)

clean:  ## remove .venv and the caches; the next `make lab` sets up anew
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache *.egg-info

# A Python 3.11 to 3.13 that can make environments: the one asked for, or the first of the usual names.
$(VENV)/.created:
	@found=; unable=; \
	for candidate in $(or $(PYTHON),$(wildcard $(VENV_PYTHON)) python3 python3.13 python3.12 python3.11 python); do \
		"$$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null || continue; \
		"$$candidate" -c 'import ensurepip, venv' 2>/dev/null || { unable=$$candidate; continue; }; \
		found=$$candidate; break; \
	done; \
	if [ -z "$$found" ] && [ -n "$$unable" ]; then \
		echo "$$unable cannot make a virtual environment: its venv module is missing." >&2; \
		echo "On Debian or Ubuntu: apt install python3-venv. Then run make again." >&2; exit 1; \
	elif [ -z "$$found" ]; then \
		echo "The lab needs Python 3.11, 3.12 or 3.13; looked for: $(or $(PYTHON),python3 python3.13 python3.12 python3.11 python)." >&2; \
		echo "python3 here is: $$(python3 --version 2>&1 | head -n 1)." >&2; \
		echo "Install one of them, or name it: make lab PYTHON=/path/to/python3.12" >&2; exit 1; \
	fi; \
	echo "Making $(VENV) with $$found ($$($$found --version 2>&1))"; \
	if [ "$$found" != "$(VENV_PYTHON)" ]; then "$$found" -m venv $(VENV); fi && touch $@

$(VENV)/.lab-ready: pyproject.toml constraints.txt | $(VENV)/.created
	@$(VENV_PYTHON) -m labkit setup

$(VENV)/.test-ready: pyproject.toml constraints.txt | $(VENV)/.lab-ready
	@$(VENV_PYTHON) -m labkit setup --test
