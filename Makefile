# `make demo` is all a fresh machine needs to see it work, `make test` to test it: both make .venv and install first.
PYTHON ?= python3
VENV := .venv
READY := $(VENV)/.ready

.PHONY: demo install test test-slow lint clean

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

# a file of tests stays in one process, with what its tests share; two processes of two threads would stand in each
# other's way on two cores
test: $(READY)
	OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest -n 2 --dist loadfile

test-slow: $(READY)
	$(VENV)/bin/python -m pytest -m "slow and not gpu"

lint: $(READY)
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy

clean:
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
