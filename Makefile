# Every target installs what it needs first: make book, make test, make lab ... work on a new machine with Python >= 3.11.
#   PYTHON=python3.12   a different interpreter for the virtual environment
#   JOBS=4              number of processes for `make test`; default: one per core

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

# threadpoolctl does not limit the threads of Apple's BLAS, which reads this at its start.
export VECLIB_MAXIMUM_THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: help setup book quick test test-all portable mutants mutants-library lab plain execute notebook text mirror maps results runtimes assignment assignments autograde gradescope count numbers terms lint format lock oracle browser pdf look clean

help:  ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY)  ## create the virtual environment .venv and install everything in it (other targets call this)

$(READY): requirements.txt pyproject.toml tools/setup.sh
	@PYTHON="$(PYTHON)" tools/setup.sh $(VENV)
	@touch $@

# If only a chapter has changed, only that chapter is built again. Any other change builds all pages again. So does a page
# with a warning, because an incremental build would not report the warning a second time.
SHARED := $(wildcard project.toml) _toc.yml _config.yml Makefile book tools nanoeuler_lib nanoeuler_book konigsberg cudacheck

book: $(READY)  ## build the book: _build/html/index.html (warnings are errors; links and pages are checked)
	@[ -f _build/html/objects.inv ] && [ -z "$$(find $(SHARED) -name __pycache__ -prune -o -type f \
	    -newer _build/html/objects.inv -print | head -n 1)" ] || rm -rf _build/html
	@$(BIN)/jupyter-book build . --path-output . -W -n --keep-going --quiet \
	    || { rm -rf _build/html _build/.doctrees; exit 1; }
	@$(BIN)/python -m tools.book.check_site _build/html
	@echo "open _build/html/index.html"

pdf: book  ## print the whole book into one PDF with an outline: _build/nanoeuler.pdf (needs Chromium or Chrome)
	@$(BIN)/python -m pip install --quiet $$(grep -o 'pikepdf==[0-9.]*' pyproject.toml)
	@$(BIN)/python -m tools.book.pdf _build/html _build/nanoeuler.pdf

# Each process uses one BLAS thread, because JOBS processes share the cores.
PYTEST := OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist loadscope
NBVAL  := --nbval --nbval-current-env --nbval-sanitize-with=nanoeuler_book/nbval_sanitize.cfg --nbval-kernel-startup-timeout=300
QUICK  := tests/model/test_ops.py tests/model/test_decoders.py tests/model/test_settings.py tests/model/test_step.py tests/text \
          tests/generation/test_generate.py tests/training/test_runs.py tests/training/test_resume.py \
          tests/common/test_floors.py tests/common/test_contracts.py

quick: $(READY)  ## run the quick tests, about a minute: layers, model, tokenizer, data, sampling, a step, runs, mirror cells
	$(PYTEST) -q $(QUICK) $(ARGS)
	@$(BIN)/python -m tools.notebooks.mirror

test: $(READY)  ## test the library and the book's tools, and run every notebook again (ARGS=... goes to pytest)
	$(PYTEST) $(NBVAL) tests $(wildcard notebooks/*.ipynb) $(ARGS)

test-all: $(READY)  ## run all tests, including planted bugs, gap runs, assignments, kills, the whole engine, mutants
	$(PYTEST) $(NBVAL) --all tests $(wildcard notebooks/*.ipynb) $(ARGS)

portable: $(READY)  ## run notebooks and numeric tests as other processors would compute them (NB=... for one chapter, ARGS=--all)
	$(BIN)/python -m tools.release.portable --jobs $(JOBS) $(if $(filter command line,$(origin NB)),$(NB)) $(ARGS)

MUTMUT := $(BIN)/python -c "import mutmut" 2>/dev/null || $(BIN)/python -m pip install --quiet --no-build-isolation --editable ".[mutants]"

mutants: $(READY)  ## test whether a chapter's checks reject wrong answers that are made by rules (CH=06, ARGS="--gap rmsnorm")
	@$(MUTMUT)
	@OPENBLAS_NUM_THREADS=1 $(BIN)/python -m tools.release.chapter_mutants --processes $(JOBS) $(CH) $(ARGS)

mutants-library: $(READY)  ## test whether the tests catch bugs planted in the library (MODULE=optim SAMPLE=300 SEED=0 SKIP=0)
	@$(MUTMUT)
	@$(BIN)/python -m tools.release.mutants --module "$(MODULE)" --sample $(SAMPLE) --seed $(SEED) --skip $(SKIP)

# Containers usually run as root, and Jupyter refuses to start as root unless it is explicitly allowed.
lab: $(READY)  ## open JupyterLab on your own copies of the notebooks, in work/ (NB=notebooks/06_attention.ipynb: on the original)
	@$(BIN)/python -m tools.book.lab
	$(BIN)/jupyter lab --notebook-dir=. $(if $(filter 0,$(shell id -u)),--allow-root) $(ARGS) $(if $(filter command line,$(origin NB)),$(NB),work/00_start_here.ipynb)

plain: $(READY)  ## write the notebooks for programs without MyST (VS Code, Colab, Kaggle, GitHub): _build/plain
	@$(BIN)/python -m tools.book.plain

runtimes: $(READY)  ## compare the outputs of one run in NumPy, the page's JavaScript, transformers 4 and 5, llama.cpp (RUN=...)
	@$(BIN)/python -m benchmarks.runtimes $(RUN)

execute: $(READY)  ## run notebooks, store and normalise their outputs (NB=notebooks/06_attention.ipynb; default: all)
	@$(BIN)/python -m tools.notebooks.notebook execute $(NB)

text: $(READY)  ## write a notebook as MyST text, for an editor: _build/text/*.md (NB=...)
	@$(BIN)/python -m tools.notebooks.notebook text $(NB)

notebook: $(READY)  ## turn MyST text back into its notebook, and run it (MD=_build/text/06_attention.md)
	@$(BIN)/python -m tools.notebooks.notebook from-text $(MD)

mirror: $(READY)  ## copy the library's code into the notebooks' mirror cells
	@$(BIN)/python -m tools.notebooks.mirror --write

results: $(READY)  ## run the long experiment of a chapter: data/results/ch15.json (CH=15; CH=ladder: the baselines)
	@$(BIN)/python -m experiments.$(if $(wildcard experiments/$(CH).py),$(CH),ch$(CH))

assignment: $(READY)  ## write the students' version of a chapter, without solutions: _build/assignments/release (CH=06)
	@$(BIN)/python -m tools.course.assignment $(CH)

assignments: $(READY)  ## write the students' version of every chapter, and test it with right, wrong and untouched answers (20 minutes)
	@$(BIN)/python -m tools.course.assignment $(patsubst notebooks/%,%,$(foreach n,$(wildcard notebooks/*.ipynb),$(firstword $(subst _, ,$(n)))))
	$(BIN)/python -m pytest --slow -n $(JOBS) tests/course/test_assignment.py $(ARGS)

autograde: $(READY)  ## grade a folder of submissions: feedback and grades-06.csv in _build/assignments (CH=06 FROM=FOLDER STUDENTS=FILE DUE=DATE)
	@$(BIN)/python -m tools.course.autograde "$(CH)" "$(FROM)" "$(STUDENTS)" "$(DUE)"

gradescope: $(READY)  ## make an autograder for Gradescope: chapter notebook (CH=08) or individual assignment (CH=08 SEED=FILE STUDENTS=FILE)
	@$(BIN)/python -m tools.course.gradescope "$(CH)" "$(if $(filter command line,$(origin SEED)),$(SEED))" "$(STUDENTS)"

maps: $(READY)  ## write the "You are here" map of every chapter, from _toc.yml
	@$(BIN)/python -m tools.notebooks.maps --write

count: $(READY)  ## count words, lines and hours of each chapter, mark what exceeds the limits (ARGS=--write: store the hours)
	@$(BIN)/python -m tools.notebooks.count $(ARGS)

numbers: $(READY)  ## number figures, equations, exercises and theorems by chapter (6.5), in JupyterLab as well
	@$(BIN)/python -m tools.notebooks.numbering --write

terms: $(READY)  ## list glossary terms and symbols that are used before they are introduced
	@$(BIN)/python -m tools.notebooks.terms

lint: $(READY)  ## run ruff, codespell, the check of the book's word list, and mypy on the layers, the model and the text
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	$(BIN)/python -m tools.book.words
	$(BIN)/mypy

format: $(READY)  ## let ruff fix and format code and notebooks
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

lock:  ## write requirements.txt from pyproject.toml (needs uv)
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-header --quiet \
	    --extra book --extra dev --extra instructor --extra corpus --upgrade --output-file requirements.txt pyproject.toml

oracle: $(READY)  ## install PyTorch, mpirun, mutmut and other independent oracles, for tests that are skipped without them
	@# Install PyTorch first, by itself: if there is a CPU build, pip takes it, and the other packages accept it.
	$(BIN)/python -m pip install --quiet $$(grep -o 'torch==[0-9.]*' pyproject.toml)
	$(BIN)/python -m pip install --quiet --no-build-isolation --editable ".[oracle,cards,mutants]"

look: book browser  ## take pictures of ten pages at three widths, light and dark, and of three chapters in JupyterLab: _build/screenshots
	@$(BIN)/python -m tools.release.look _build/html _build/screenshots

browser: $(READY)  ## install Playwright, axe and (with npm) KaTeX, for tests of the pages that are skipped without them
	$(BIN)/python -m pip install --quiet --no-build-isolation --editable ".[browser]"
	command -v npm > /dev/null && npm install --silent --prefix $(VENV) katex@0.16.22 \
	    || echo "no npm: JupyterLab's formulas are not tested"

clean:  ## remove everything that was built, including the virtual environment
	rm -rf _build $(VENV) build dist *.egg-info
