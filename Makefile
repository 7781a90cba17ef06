# Every target does the set-up it needs: make book, make test, make lab ... on a fresh machine with Python >= 3.11.
#   PYTHON=python3.12   another interpreter for the virtual environment
#   JOBS=4              processes that `make test` uses; by default one per core

PYTHON ?=
JOBS   ?= $(shell nproc 2>/dev/null || sysctl -n hw.ncpu)
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
NB     ?= $(wildcard notebooks/*.ipynb)
MODULE ?=
SAMPLE ?= 300
SEED   ?= 0
SKIP   ?= 0

.DEFAULT_GOAL := help
.PHONY: help setup book quick test test-all portable mutants mutants-library lab execute notebook text mirror maps results runtimes assignment assignments autograde gradescope count numbers terms lint format lock oracle browser pdf look clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY)  ## the virtual environment .venv and everything in it (the other targets call it)

$(READY): requirements.txt pyproject.toml tools/setup.sh
	@PYTHON="$(PYTHON)" tools/setup.sh $(VENV)
	@touch $@

# A changed chapter alone is read and written again; anything else that is changed makes all pages anew, and so does a
# page with a fault, which would not be reported again.
SHARED := $(wildcard project.toml) _toc.yml _config.yml Makefile book tools nanoeuler_lib nanoeuler_book konigsberg cudacheck

book: $(READY)  ## the rendered book: _build/html/index.html (warnings are errors, the pages are checked)
	@[ -f _build/html/objects.inv ] && [ -z "$$(find $(SHARED) -name __pycache__ -prune -o -type f \
	    -newer _build/html/objects.inv -print -quit)" ] || rm -rf _build/html
	@$(BIN)/jupyter-book build . --path-output . -W -n --keep-going --quiet \
	    || { rm -rf _build/html _build/.doctrees; exit 1; }
	@$(BIN)/python -m tools.book.check_site _build/html
	@echo "open _build/html/index.html"

pdf: book  ## the whole book as one PDF with an outline: _build/nanoeuler.pdf (needs Chromium or Chrome)
	@$(BIN)/python -m pip install --quiet $$(grep -o 'pikepdf==[0-9.]*' pyproject.toml)
	@$(BIN)/python -m tools.book.pdf _build/html _build/nanoeuler.pdf

# Each process computes with one BLAS thread: JOBS processes share the cores already.
PYTEST := OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist loadscope
NBVAL  := --nbval --nbval-current-env --nbval-sanitize-with=tools/notebooks/nbval_sanitize.cfg --nbval-kernel-startup-timeout=300
QUICK  := tests/model/test_ops.py tests/model/test_decoders.py tests/model/test_settings.py tests/model/test_step.py tests/text \
          tests/generation/test_generate.py tests/training/test_runs.py tests/training/test_resume.py \
          tests/common/test_floors.py tests/common/test_contracts.py

quick: $(READY)  ## a minute: layers, model, tokenizer, data, sampling, a step, runs, and the mirror cells
	$(PYTEST) -q $(QUICK) $(ARGS)
	@$(BIN)/python -m tools.notebooks.mirror

test: $(READY)  ## the library, the book's tools, and every notebook run again (ARGS=... goes to pytest)
	$(PYTEST) $(NBVAL) tests $(wildcard notebooks/*.ipynb) $(ARGS)

test-all: $(READY)  ## the same, and what it leaves out: planted bugs, gap runs, assignments, kills, the whole engine, mutants
	$(PYTEST) $(NBVAL) --all tests $(wildcard notebooks/*.ipynb) $(ARGS)

portable: $(READY)  ## notebooks and numeric tests as other processors compute them (NB=... for one chapter, ARGS=--all)
	$(BIN)/python -m tools.release.portable --jobs $(JOBS) $(if $(filter command line,$(origin NB)),$(NB)) $(ARGS)

mutants: $(READY)  ## do a chapter's checks reject wrong answers made by rule? (CH=06, ARGS="--gap rmsnorm")
	@OPENBLAS_NUM_THREADS=1 $(BIN)/python -m tools.release.chapter_mutants --processes $(JOBS) $(CH) $(ARGS)

mutants-library: $(READY)  ## do the tests catch bugs planted in the library? (MODULE=optim SAMPLE=300 SEED=0 SKIP=0)
	@$(BIN)/python -m tools.release.mutants --module "$(MODULE)" --sample $(SAMPLE) --seed $(SEED) --skip $(SKIP)

# Who is root is so in a container, as a rule; Jupyter refuses to start for root unless it is told that this is meant.
lab: $(READY)  ## JupyterLab on your own copies of the notebooks, in work/ (NB=notebooks/06_attention.ipynb: on the book's own)
	@$(BIN)/python -m tools.book.lab
	$(BIN)/jupyter lab --notebook-dir=. $(if $(filter 0,$(shell id -u)),--allow-root) $(ARGS) $(if $(filter command line,$(origin NB)),$(NB),work/00_start_here.ipynb)

runtimes: $(READY)  ## the same run in NumPy, the page's JavaScript, transformers 4 and 5, llama.cpp (RUN=...): one table
	@$(BIN)/python -m benchmarks.runtimes $(RUN)

execute: $(READY)  ## run notebooks in place and normalise their output (NB=notebooks/06_attention.ipynb; default all)
	@$(BIN)/python -m tools.notebooks.notebook execute $(NB)

text: $(READY)  ## a notebook as MyST text, for an editor: _build/text/*.md (NB=...)
	@$(BIN)/python -m tools.notebooks.notebook text $(NB)

notebook: $(READY)  ## MyST text back into its notebook, executed (MD=_build/text/06_attention.md)
	@$(BIN)/python -m tools.notebooks.notebook from-text $(MD)

mirror: $(READY)  ## copy the library's text into the notebooks' mirror cells
	@$(BIN)/python -m tools.notebooks.mirror --write

results: $(READY)  ## run the long experiment of a chapter: data/results/ch15.json (CH=15; CH=ladder for the ladder)
	@$(BIN)/python -m experiments.$(if $(wildcard experiments/$(CH).py),$(CH),ch$(CH))

assignment: $(READY)  ## the students' version of a chapter, without solutions: _build/assignments/release (CH=06)
	@$(BIN)/python -m tools.course.assignment $(CH)

assignments: $(READY)  ## that of every chapter, each tried with right, wrong and untouched submissions (20 minutes)
	@$(BIN)/python -m tools.course.assignment $(patsubst notebooks/%,%,$(foreach n,$(wildcard notebooks/*.ipynb),$(firstword $(subst _, ,$(n)))))
	$(BIN)/python -m pytest --slow -n $(JOBS) tests/course/test_assignment.py $(ARGS)

autograde: $(READY)  ## grade a folder of submissions: pages and grades-06.csv in _build/assignments (CH=06 FROM=FOLDER STUDENTS=FILE DUE=DATE)
	@$(BIN)/python -m tools.course.autograde "$(CH)" "$(FROM)" "$(STUDENTS)" "$(DUE)"

gradescope: $(READY)  ## an autograder for Gradescope: a chapter's notebook, or its paper (CH=08, SEED=FILE STUDENTS=FILE)
	@$(BIN)/python -m tools.course.gradescope "$(CH)" "$(if $(filter command line,$(origin SEED)),$(SEED))" "$(STUDENTS)"

maps: $(READY)  ## the "You are here" map of every chapter, from _toc.yml
	@$(BIN)/python -m tools.notebooks.maps --write

count: $(READY)  ## words, lines and hours of each chapter, the evening's limits marked (ARGS=--write: into the heads)
	@$(BIN)/python -m tools.notebooks.count $(ARGS)

numbers: $(READY)  ## figures, equations, exercises and theorems count by chapter (6.5), in JupyterLab too
	@$(BIN)/python -m tools.notebooks.numbering --write

terms: $(READY)  ## glossary terms and symbols used before they are introduced
	@$(BIN)/python -m tools.notebooks.terms

lint: $(READY)  ## ruff, codespell, mypy on the layers, the model and the text
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	$(BIN)/mypy

format: $(READY)  ## let ruff fix and format code and notebooks
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

lock:  ## write requirements.txt anew from pyproject.toml (needs uv)
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-header --quiet \
	    --extra book --extra dev --extra instructor --extra corpus --upgrade --output-file requirements.txt pyproject.toml

oracle: $(READY)  ## PyTorch and other independent oracles, and mpirun, for the tests that otherwise say they skipped them
	@# PyTorch alone first: where a CPU build is on offer it is taken, and the others do not ask for another.
	$(BIN)/python -m pip install --quiet $$(grep -o 'torch==[0-9.]*' pyproject.toml)
	$(BIN)/python -m pip install --quiet --no-build-isolation --editable ".[oracle,cards]"

look: book browser  ## ten pages at three widths, light and dark, and three chapters in JupyterLab: _build/screenshots
	@$(BIN)/python -m tools.release.look _build/html _build/screenshots

browser: $(READY)  ## Playwright, axe and (with npm) KaTeX, for the tests that look at the pages and are otherwise skipped
	$(BIN)/python -m pip install --quiet --no-build-isolation --editable ".[browser]"
	command -v npm > /dev/null && npm install --silent --prefix $(VENV) katex@0.16.22 \
	    || echo "no npm: what JupyterLab makes of the formulas stays untested"

clean:  ## remove what was built, the virtual environment too
	rm -rf _build $(VENV) build dist *.egg-info
