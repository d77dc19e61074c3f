# `make demo` shows it at work and `make test` tests it; both first make .venv and install.
PYTHON ?= python3
VENV := .venv
READY := $(VENV)/.ready

.PHONY: demo install test test-slow coverage lint lock upgrade sbom clean

demo: $(VENV)/bin/vitkit
	$(VENV)/bin/vitkit demo

$(VENV)/bin/vitkit:
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .

install: $(READY)

$(READY): pyproject.toml constraints.txt
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,hub,formats,export,serve,ray,remote,dense]'
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

# Pin every package, and the hashes of their files for this platform; `upgrade` takes the newest versions.
lock: $(READY)
	$(VENV)/bin/python release/lock.py

upgrade: $(READY)
	$(VENV)/bin/python release/lock.py --upgrade

# The software bill of materials of the environment, in CycloneDX's JSON, without its validation, which takes 16 s.
SBOM := sbom.json
sbom: $(READY)
	$(VENV)/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible --no-validate --output-file $(SBOM) $(VENV)/bin/python

clean:
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage coverage.xml sbom.json
