# `make demo` shows it at work and `make test` tests it; both first make .venv and install.
PYTHON ?= python3
VENV := .venv
READY := $(VENV)/.ready

.PHONY: demo install test test-slow coverage lint clean

demo: $(VENV)/bin/vitkit
	$(VENV)/bin/vitkit demo

$(VENV)/bin/vitkit:
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .

install: $(READY)

$(READY): pyproject.toml constraints.txt
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,hub,formats,export,serve]'
	touch $@

# The tests of a file stay in one process with their shared fixtures. One thread per process: two processes of two
# threads would compete for two cores.
test: $(READY)
	OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest -n 2 --dist loadfile

test-slow: $(READY)
	$(VENV)/bin/python -m pytest -m "slow and not gpu"

coverage: $(READY)
	OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest -n 2 --dist loadfile --cov=vitkit --cov-report=term --cov-report=xml

lint: $(READY)
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy

clean:
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage coverage.xml
