# `make demo` and `make test` do everything on a fresh Debian or Ubuntu machine with Python 3.11+ and pip.
PYTHON ?= python3
# Without bytecode each process compiles the package anew: a first exercise took 2.8 s, not 0.7.
export PYTHONDONTWRITEBYTECODE :=
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.set-up
JOBS ?= 2  # processes that test side by side: ranks and browsers often wait
NOTEBOOKS = $(wildcard notebooks/*.ipynb)

.DEFAULT_GOAL := help
.PHONY: help setup fit demo test sweep lab bench lint versions wheel picture gallery validate claims answers glossary leaderboard pages docs site types binder-check hub-check lock clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*##/make \1:/p' $(MAKEFILE_LIST)

setup: $(STAMP)  ## create .venv with all that the other targets need

# Where Debian's python3-venv is missing, the machine's pip fills an environment made without pip.
# torch goes first and alone: a range, or another package's wish, would pull the newest build instead.
# Bytecode comes with a module's first import: most modules are never imported.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; v < (3, 11) and sys.exit("tpviz needs Python 3.11 or newer, $(PYTHON) is %d.%d: make PYTHON=python3.11 setup" % v)'
	$(PYTHON) -m venv --without-pip $(VENV)
	$(PYTHON) -m pip --python $(BIN)/python install --quiet --no-compile pip
	$(BIN)/python -m pip install --quiet --no-compile torch==2.13.0
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt -e '.[test,lab,docs]'
	@touch $@

demo: setup  ## train a small GPT on 4 real ranks, check it, and write the pictures to out/demo
	$(BIN)/python -m tpviz.views.demo

test: setup  ## run the suite: unit, rank, notebook and browser tests; ALL=1: what CI runs
	$(BIN)/python -m pytest -n $(JOBS) $(if $(ALL),-m "not sweep")

sweep: setup  ## before a release: all slow tests, every strategy of up to 8 ranks (hours)
	$(BIN)/python -m pytest -n $(JOBS) -m sweep
	for file in bench/sweep_*.py; do $(BIN)/python $$file || exit 1; done

lab: setup  ## open JupyterLab on the first notebook
	$(BIN)/jupyter lab $(if $(filter 0,$(shell id -u)),--allow-root) notebooks/00_start.ipynb

bench: setup  ## measure beside peers; tables on the screen, JSON in out/bench
	$(BIN)/python bench/run_all.py

versions:  ## run the core of the suite on the lowest and the newest torch, in .versions
	$(PYTHON) .ci/versions.py $(VERSIONS)

wheel: setup  ## build sdist and wheel, try the wheel on three Pythons; ONLY=3.12: on one, TAG=v0.1.0: is it that
	$(BIN)/python .ci/wheel.py $(if $(TAG),--tag "$(TAG)") $(ONLY)

types: setup  ## check types, what `import tpviz` offers strictly
	$(BIN)/basedpyright
	$(BIN)/basedpyright -p .ci/strict.json

lint: setup  ## check code and notebooks with ruff, and that the notebooks carry no outputs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(if $(NOTEBOOKS),$(BIN)/nbstripout --verify $(NOTEBOOKS))

gallery: setup  ## write docs/gallery.html, the views in one file to look at without installation
	$(BIN)/python docs/draw_gallery.py

fit: setup  ## fit the numbers of tpviz/cluster/coefficients.json, on the rows that may be fitted on
	$(BIN)/python -m tpviz.evidence.published.fit

validate: setup  ## write docs/validation.md: predictions beside published runs, and the README's figures
	$(BIN)/python docs/draw_validation.py
	$(BIN)/python docs/draw_gpu.py

claims: setup  ## write docs/claims.md: the papers' headlines beside our figures
	$(BIN)/python docs/draw_claims.py

answers: setup  ## write docs/teacher/answers.md, the answer key, from the answers that the tests grade
	PYTHONPATH=tests/course $(BIN)/python tests/course/answers.py

glossary: setup  ## link the first use of each term in a notebook to docs/glossary.md
	$(BIN)/python docs/link_terms.py

handouts: setup  ## execute notebooks and write them to out/handouts, HTML and PDF; ONLY=<path>: one
	$(BIN)/python docs/teacher/pages.py handouts $(ONLY)

slides: setup  ## the same notebooks as slides, one HTML file each, in out/slides; ONLY=<path>: one
	$(BIN)/python docs/teacher/pages.py slides $(ONLY)

assignments: setup  ## the exercises as nbgrader's source and release notebooks, in out/assignments
	$(BIN)/python docs/teacher/export_assignments.py

leaderboard: setup  ## write docs/leaderboard.md, the scores of the entries in docs/leaderboard
	$(BIN)/python docs/draw_leaderboard.py

pages: gallery answers claims glossary validate leaderboard picture  ## all that scripts write, anew: before a commit that changes looks

picture: setup  ## draw the README's pictures anew, from real runs
	$(BIN)/python docs/draw_picture.py
	$(BIN)/python docs/draw_comparison.py

docs: setup  ## write the documentation to out/site; notebooks are executed where out/executed lacks them
	$(BIN)/sphinx-build -W --keep-going -q -j $(JOBS) -c docs -d out/doctrees . out/site

site: setup  ## add the planner to out/site/planner, and JupyterLite to out/site/lab; NUMPY=<its wheel for Pyodide>
	$(BIN)/python docs/build_planner.py $(if $(NUMPY),--numpy $(NUMPY))
	$(BIN)/python -m venv out/lite  # apart: an extension of its kernel fails in a plain JupyterLab
	out/lite/bin/python -m pip install -q -c constraints.txt jupyterlite-core jupyterlite-pyodide-kernel jupyterlab ipywidgets anywidget numpy packaging hatchling
	PYTHONPATH=. out/lite/bin/python docs/build_lab.py $(if $(NUMPY),--numpy $(NUMPY))

binder-check: setup  ## run notebooks as Binder would: its pins, one core, 2 GB; all, or ONLY=<path>
	$(BIN)/python binder/check.py $(ONLY)

hub-check: setup  ## nbgrader, a JupyterHub of two people, and marimo, in environments of their own
	$(BIN)/python .ci/grading.py
	$(BIN)/python .ci/hub.py
	$(BIN)/python .ci/in_marimo.py

lock: setup  ## write the hashed locks of the images in hub/, after a change of constraints.txt
	$(BIN)/python .ci/lock.py

clean:  ## remove what the other targets made
	rm -rf $(VENV) .versions out build dist .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
