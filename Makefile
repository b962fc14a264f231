# Every target sets up .venv first if it is missing or older than what it is made from.
#   make demo DEMO_ARGS="--json FILE"   run the demo
#   make test TEST_ARGS="-k NAME"       run the tests, on TEST_WORKERS processes
#   make test-gpu                       run the tests of GPU paths; where there is none, list them as untested
#   make test-lowest                    run the tests of the library at the oldest versions that it supports
#   make test-wheels                    install the wheel with each extra into an environment of its own
#   make lint                           style, types, import rules, generated code
#   make proto                          write kvboost/v1 from proto/
#   make docs                           build the documentation into site/
#   make evals EVALS_ARGS="..."         run the evals in their quick form
# PYTHON chooses the interpreter of a new .venv; PIP_ARGS goes to pip.

PYTHON ?= python3
PIP_ARGS ?=
TEST_WORKERS ?= auto
VENV := .venv
STAMP := $(VENV)/.installed
LOWEST := .venv-lowest
LOWEST_STAMP := $(LOWEST)/.installed
# What the supported versions decide; the commands, the demo and the documentation stand on these.
LOWEST_TESTS := tests/contracts tests/client tests/wire tests/segment tests/index tests/runtime tests/test_api.py \
	tests/services/test_gateway_bodies.py tests/services/test_bad_calls.py

export TOKENIZERS_PARALLELISM := false

.PHONY: setup demo test test-gpu test-lowest test-wheels lint proto evals docs
.DEFAULT_GOAL := test

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "kvboost needs Python 3.11 or newer; set PYTHON")'
	@test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV): 1 of 2, torch (a few minutes the first time)"
	@$(VENV)/bin/python -m pip install -qq --disable-pip-version-check $(PIP_ARGS) -c constraints.txt torch
	@echo "installing into $(VENV): 2 of 2, kvboost and everything else"
	@$(VENV)/bin/python -m pip install -qq --disable-pip-version-check $(PIP_ARGS) -c constraints.txt -e ".[dev]"
	@touch $@

demo: $(STAMP)
	$(VENV)/bin/kvboost demo $(DEMO_ARGS)

test: $(STAMP)
	$(VENV)/bin/python -m pytest -n $(TEST_WORKERS) --maxprocesses 8 --dist loadfile --no-loadscope-reorder --durations 20 $(TEST_ARGS)

test-gpu: $(STAMP)
	$(VENV)/bin/python -m pytest -m gpu -rs $(TEST_ARGS)

$(LOWEST_STAMP): pyproject.toml constraints-lowest.txt
	@test -x $(LOWEST)/bin/python || $(PYTHON) -m venv $(LOWEST)
	@echo "installing the oldest supported versions into $(LOWEST)"
	@$(LOWEST)/bin/python -m pip install -qq --disable-pip-version-check $(PIP_ARGS) -c constraints-lowest.txt torch
	@$(LOWEST)/bin/python -m pip install -qq --disable-pip-version-check $(PIP_ARGS) -c constraints-lowest.txt \
		-e ".[all]" accelerate babel hypothesis num2words openai peft pytest pytest-timeout pytest-xdist pyyaml
	@touch $@

test-lowest: $(LOWEST_STAMP)
	$(LOWEST)/bin/python -m pytest -n $(TEST_WORKERS) --maxprocesses 8 --dist loadfile $(LOWEST_TESTS) $(TEST_ARGS)

test-wheels: $(STAMP)
	$(VENV)/bin/python -m pytest -m packaging tests/wheels $(TEST_ARGS)

lint: $(STAMP)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy kvboost services
	$(VENV)/bin/lint-imports
	$(VENV)/bin/python scripts/gen_proto.py --check

proto: $(STAMP)
	$(VENV)/bin/python scripts/gen_proto.py

evals: $(STAMP)
	$(VENV)/bin/python -m evals --quick $(EVALS_ARGS)

docs: $(STAMP)
	$(VENV)/bin/mkdocs build --strict
	@echo "open it with: $(VENV)/bin/mkdocs serve, or any web server on site/"
