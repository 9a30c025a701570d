# Every target makes the virtual environments it needs and reuses them until what they are
# made from changes. VENVS is the directory they stand in.

VENVS ?= .
# 3.11 is where every optional package has a wheel.
PYTHON ?= $(shell for python in python3.11 python3 python; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null && echo $$python && break; done)
OLDEST := 3.9
NEWEST := 3.13
# Test processes side by side: as many as there are CPUs, up to eight.
JOBS ?= auto
PYTEST_PARALLEL := -n $(JOBS) --maxprocesses 8 --dist worksteal
# What takes longest is at the end of the output.
DURATIONS := --durations=40 --durations-min=5
# The test processes share the CPUs: threads of OpenMP that spin while they wait would take them from each other.
quick test test-thorough test-py%: export OMP_NUM_THREADS ?= 1
# What is copied into an environment by an editable installation.
INSTALLED := pyproject.toml $(wildcard ascend_dump/startup/*ascend_dump_startup.*)

VENV := $(VENVS)/.venv
# The longest first, so that no long one is left alone at the end.
LONGEST := torch torchair tensorflow
SUITES := $(patsubst tests/real/%/requirements.txt,%,$(wildcard tests/real/*/requirements.txt))
SUITES := $(filter $(SUITES),$(LONGEST)) $(filter-out $(LONGEST),$(SUITES))
BENCHMARKS := $(filter-out tests/benchmarks/_%,$(wildcard tests/benchmarks/*.py))

# An interpreter of this version from PATH or pyenv; a pyenv shim may exist and not run.
find_python = $(shell for python in python$(1) "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/$(1).*/bin/python; do \
	"$$python" -c '' 2>/dev/null && echo "$$python" && break; done)
# $(1): the environment. Most of what is installed is never imported: pip would spend most of its time on compiling it.
pip_install = $(1)/bin/pip install -q --no-compile
# PyTorch names its CPU builds +cpu; where pip is not shown them, the plain one is what there is.
cpu_torch = $(pip_install) 'torch==2.13.0+cpu' 2>/dev/null
any_torch = $(cpu_torch) || { echo "no CPU build of torch 2.13.0 here, installing torch"; $(pip_install) torch; }
# $(1): the environment, $(2): its Python. pip learned dependency groups in 25.1. Another pip puts it there in a quarter
# of the time that ensurepip takes, which compiles its own; where that one is missing or too old, ensurepip does.
make_venv = rm -rf $(1) && { $(2) -m venv --without-pip $(1) && $(PYTHON) -m pip --python $(1)/bin/python \
	install -q --no-compile 'pip>=25.1' 2>/dev/null || \
	{ rm -rf $(1) && $(2) -m venv $(1) && $(pip_install) --upgrade 'pip>=25.1'; }; }

# Where it is set, as in many containers, every process would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo quick test test-thorough test-all test-real test-npu check docs bench fuzz clean
.DEFAULT_GOAL := help

help:
	@echo 'make demo       train a small network with a planted fault and find it (needs no device)'
	@echo 'make quick      within a minute: ruff, plain names, and the fast unit tests'
	@echo 'make test       the tests that are not marked thorough, in parallel processes; JOBS=1 runs one'
	@echo 'make test-all   the same and the thorough ones, and make test under Python $(OLDEST) and $(NEWEST) if found'
	@echo 'make test-real  the suites that run real frameworks: $(or $(SUITES),none yet)'
	@echo 'make test-npu   the contracts of the adapters on an Ascend device: NPU=$(NPU), with the frameworks of $(PYTHON)'
	@echo 'make check      ruff, mypy, plain names, and hadolint over docker/'
	@echo 'make docs       the pages and the reference of the Python interface as HTML, in $(DOCS)'
	@echo 'make bench      the benchmarks, as ratios within one run'
	@echo 'make fuzz       mutated files for every reader: MUTANTS=$(MUTANTS) SEED=$(SEED) SECONDS= JOBS='
	@echo 'make clean      remove the virtual environments and caches'

demo: $(VENVS)/.venv-demo/stamp
	@$(VENVS)/.venv-demo/bin/ascend-dump demo

# Not editable: it shows what a user installs.
$(VENVS)/.venv-demo/stamp: pyproject.toml $(shell find ascend_dump adapters -name '*.py' -o -name '*.md')
	@echo "installing ascend_dump and PyTorch into $(@D), a minute or two where they are not there yet"
	@test -x $(@D)/bin/ascend-dump || { $(call make_venv,$(@D),$(PYTHON)) && { $(call any_torch,$(@D)); }; }
	@$(call pip_install,$(@D)) .
	@touch $@

quick: $(VENV)/stamp
	$(VENV)/bin/ruff check .
	$(VENV)/bin/python .ci/plain_names.py ascend_dump adapters
	$(VENV)/bin/python -m pytest $(PYTEST_PARALLEL) -q -m 'not thorough and not slow' tests/unit

test: $(VENV)/stamp
	$(VENV)/bin/python -m pytest $(PYTEST_PARALLEL) $(DURATIONS) -m 'not thorough' --ignore tests/real

test-thorough: $(VENV)/stamp
	$(VENV)/bin/python -m pytest $(PYTEST_PARALLEL) $(DURATIONS) -m thorough --ignore tests/real

test-all: test-thorough test test-py$(OLDEST) test-py$(NEWEST)

$(VENV)/stamp: $(INSTALLED)
	$(call make_venv,$(@D),$(PYTHON))
	$(call any_torch,$(@D))
	$(call pip_install,$(@D)) --group dev -e '.[analyze]'
	touch $@

# Without the optional packages, so the suite also runs where only the base is installed; and without the tests
# marked `thorough`, whose many cases do not depend on the version of Python. Where everything runs, they come behind
# the environment of `test`, which the longest wait for.
test-py%: | $(if $(CI),$(VENV)/stamp)
	@$(if $(call find_python,$*),$(MAKE) --no-print-directory $(VENVS)/.venv-py$*/stamp && \
		echo "Python $*:" && $(VENVS)/.venv-py$*/bin/python -m pytest $(PYTEST_PARALLEL) -m 'not thorough' --ignore tests/real, \
		echo "Python $* is not found: its tests are left out")

$(VENVS)/.venv-py%/stamp: $(INSTALLED)
	$(call make_venv,$(@D),$(call find_python,$*))
	$(call cpu_torch,$(@D)) || echo "no CPU build of torch for Python $*: its tests are skipped there"
	$(call pip_install,$(@D)) --group test -e .
	touch $@

.PRECIOUS: $(VENVS)/.venv-real-%/stamp
# A suite fails when it runs no test, or skips all of them: see tests/conftest.py. Those marked thorough are run by hand.
test-real:
	@echo "suites of real frameworks: $(or $(SUITES),none; a suite is a directory tests/real/NAME with a requirements.txt)"
	@$(if $(SUITES),$(MAKE) --no-print-directory --keep-going $(SUITES:%=test-real-%))

test-real-%: $(VENVS)/.venv-real-%/stamp
	$(VENVS)/.venv-real-$*/bin/python -m pytest $(DURATIONS) -m 'not thorough' tests/real/$*

$(VENVS)/.venv-real-%/stamp: $(INSTALLED) tests/real/%/requirements.txt
	$(call make_venv,$(@D),$(PYTHON))
	$(call pip_install,$(@D)) --group test -r tests/real/$*/requirements.txt -e .
	touch $@

# With the interpreter of the image, which has CANN's packages: no environment is made, and ascend_dump is taken from here.
NPU ?= 0
test-npu:
	$(PYTHON) -m pytest --ascend-device=$(NPU) tests/real/ascend

check: $(VENV)/stamp
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/python .ci/plain_names.py ascend_dump adapters
	$(VENV)/bin/hadolint docker/*/Dockerfile

# Ends with an error where a link leads nowhere, in a page or in the reference.
DOCS := build/docs
docs: $(VENVS)/.venv-docs/stamp
	$(VENVS)/.venv-docs/bin/python .ci/docs/lay_out.py $(DOCS)/source
	$(VENVS)/.venv-docs/bin/python -m sphinx --fresh-env --nitpicky --fail-on-warning --quiet \
		--conf-dir .ci/docs $(DOCS)/source $(DOCS)/html
	@echo "open $(DOCS)/html/index.html"

$(VENVS)/.venv-docs/stamp: $(INSTALLED)
	$(call make_venv,$(@D),$(PYTHON))
	$(call pip_install,$(@D)) --group docs -e .
	touch $@

bench: $(VENVS)/.venv-bench/stamp
	@$(or $(foreach script,$(BENCHMARKS),echo "== $(script)" && $(VENVS)/.venv-bench/bin/python $(script) &&)) true

$(VENVS)/.venv-bench/stamp: $(INSTALLED)
	$(call make_venv,$(@D),$(PYTHON))
	$(call any_torch,$(@D))
	$(call pip_install,$(@D)) -e '.[analyze,distributed]'
	$(call pip_install,$(@D)) transformers || echo "transformers cannot be installed here: its Llama is not measured"
	$(call pip_install,$(@D)) playwright || echo "playwright cannot be installed here: no page is opened in a browser"
	$(call pip_install,$(@D)) mindstudio-probe || echo "the peer mindstudio-probe cannot be installed here: its columns stay empty"
	touch $@

# Ends with an error where anything but an error of ours comes of a mutant; its input is then in fuzz_findings/.
MUTANTS ?= 100000
SEED ?= 0
fuzz: export OMP_NUM_THREADS ?= 1
fuzz: $(VENV)/stamp
	$(VENV)/bin/python tests/fuzz/campaign.py --mutants $(MUTANTS) --seed $(SEED) \
		$(if $(SECONDS),--seconds $(SECONDS)) $(if $(filter-out auto,$(JOBS)),--jobs $(JOBS))

clean:
	rm -rf $(VENV) $(VENVS)/.venv-demo $(VENVS)/.venv-bench $(VENVS)/.venv-docs $(VENVS)/.venv-py* $(VENVS)/.venv-real-*
	rm -rf fuzz_findings .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
	find ascend_dump adapters tests examples -name __pycache__ -type d -prune -exec rm -rf {} +
