# Every target makes what it needs: `make demo` on a fresh machine with Python 3.11+ is enough.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: demo demo-deploy test lint check format bench ledger clean

demo: $(STAMP)  ## train on federated digits, compare four methods, write a report
	$(BIN)/sojourn run digits --out runs/digits --force

demo-deploy: $(STAMP)  ## one server and four workers as processes, two of them killed on the way
	$(BIN)/python examples/deploy/demo.py

test: $(STAMP)  ## all tests
	$(BIN)/python -m pytest

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

check: lint test  ## format, lint, types, tests

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(STAMP)  ## against a fused program, NumPy, PyTorch, FedJAX, pfl, Flower; writes benchmarks/README.md
	$(BIN)/python benchmarks/run.py

ledger: $(STAMP)  ## docs/theory-ledger.md from the metadata of the statements
	$(BIN)/python -m sojourn.theory.ledger > docs/theory-ledger.md.new
	mv docs/theory-ledger.md.new docs/theory-ledger.md

clean:
	rm -rf .venv runs build *.egg-info

# The lock pins all that CI installs; the package itself is installed in place, without asking for anything more.
$(STAMP): requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("sojourn needs Python 3.11 or newer; call make with PYTHON=python3.11") if sys.version_info < (3, 11) else None'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $(STAMP)
