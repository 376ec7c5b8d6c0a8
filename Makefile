# Everything here is a plain command that can be typed by hand; README.md says which.
PYTHON ?= python3
ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
unexport PYTHONDONTWRITEBYTECODE # else each of a thousand processes compiles the course anew

.PHONY: help setup demo lab test check browser lint site clean

help:
	@echo "make setup   create $(VENV) and install the course: some minutes, for torch and JupyterLab are large"
	@echo "make demo    train a small GPT on 8 ranks of this machine, and prove that it equals one process"
	@echo "make lab     open the lessons in JupyterLab; make lab ARGS='--no-browser --port 8889' hands these on to it"
	@echo "make test    prove everything; the last line says how long each part took; ARGS=--all for all that takes turns"
	@echo "make check   run the tests nearest to what you have changed, for less than three minutes"
	@echo "make browser go through every lesson in Chromium, which takes long; ARGS='-k 09' for one; needs chromium-driver"
	@echo "make lint    check style"
	@echo "make site    all of it as pages to read, in out/site: lessons, reference, puzzles, what each hang means"
	@echo "make clean   remove $(VENV) and caches; solutions and history stay"

setup: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed: make setup PYTHON=python3.12"; exit 2; }
	@echo "Installing the course into $(VENV): some minutes, for torch and JupyterLab are large."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --constraint constraints.txt --editable '.[lab,dev]'
	@touch $@
	@echo "Installed. Type \`. $(BIN)/activate\` once in each terminal, then \`rankwise\`; or \`$(BIN)/rankwise\` at any time."

demo: setup
	$(BIN)/rankwise demo

lab: setup
	$(BIN)/rankwise lab $(ARGS)

test: setup
	$(BIN)/python -m tests.prove $(ARGS)

check: setup
	$(BIN)/python -m tests.check $(ARGS)

browser: setup
	$(BIN)/python -m pytest tests/browser/every_lesson.py --capture=no $(ARGS)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m puzzles.grading.stubs --check

site: setup
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt --editable '.[site]'
	$(BIN)/python -m tests.watch.dictionary out/zoo.json
	NO_MKDOCS_2_WARNING=1 DISABLE_MKDOCS_2_WARNING=true $(BIN)/python -m mkdocs build --config-file docs/site/mkdocs.yml
	@echo "Open out/site/index.html in a browser."

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .ruff_cache .hypothesis out
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
