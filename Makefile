# make digits: set up, and train a small ViT on real images.  make test: set up for development, and run the tests;
# make slow: those that take minutes.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: digits install test slow check bench clean

digits: .venv/base
	$(BIN)/vitreous train digits

.venv/base: pyproject.toml constraints.txt
	@test -x $(BIN)/pip || $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "$(PYTHON) is too old: name a Python from 3.11 on, as in make digits PYTHON=python3.12")'
	test -x $(BIN)/pip || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

install: .venv/dev

.venv/dev: .venv/base
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[track,dev]"
	touch $@

test: install
	$(BIN)/python -m pytest -m "not slow and not gpu" -n 2 --dist loadfile

slow: install
	$(BIN)/python -m pytest -m "slow and not gpu"

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

bench: install
	$(BIN)/python benchmarks/forms.py
	$(BIN)/python benchmarks/peers.py
	$(BIN)/python benchmarks/augment.py
	$(BIN)/python benchmarks/loading.py
	$(BIN)/python benchmarks/scaling.py

clean:
	rm -rf .venv
