# Every command sets itself up: python3.11 or later, make, git and a network to PyPI are enough.
# The environment lies in .venv/, made from uv.lock; `rm -rf .venv .uv` undoes all of it.

PYTHON ?= python3
UV := $(shell uv --version >/dev/null 2>&1 && command -v uv || echo .uv/bin/uv)
BIN := .venv/bin
# One stamp for all commands. It lies inside .venv, so it goes when the environment goes.
READY := .venv/.ready
BENCH ?= $(patsubst tests/bench/%.py,%,$(filter-out tests/bench/__init__.py,$(wildcard tests/bench/*.py)))

.DEFAULT_GOAL := help
.PHONY: help demo demo-pretrain demo-translate test check bench format clean

help:
	@echo "make demo    fine-tune a real encoder over two processes, from federation to merged model (out/demo/)"
	@echo "make demo-pretrain"
	@echo "             pre-train on four languages over six processes, coordinated by Flower (out/demo-pretrain/)"
	@echo "make demo-translate"
	@echo "             translate between two owners over an emulated link (out/demo-translate/; PAIRS=folder or hub name)"
	@echo "make test    run the tests"
	@echo "make check   formatting, lint, types, floors, names in the documents"
	@echo "make bench   run tests/bench/*.py, one JSON each in out/bench/ (BENCH=name runs one)"
	@echo "make format  let ruff format and sort imports"
	@echo "make clean   remove out/ and the caches; .venv/ stays"

demo: $(READY)
	$(BIN)/splitlearn demo

demo-pretrain: $(READY)
	$(BIN)/splitlearn demo-pretrain

demo-translate: $(READY)
	$(BIN)/splitlearn demo-translate $(if $(PAIRS),--pairs $(PAIRS))

# A file's tests stay in one process, so what they share is made once. JOBS=0 runs all in this one.
JOBS ?= 2
SIDE_BY_SIDE := -n $(JOBS) --dist loadfile --no-loadscope-reorder

# The report is looked at in a real browser where there is one.
BROWSER := $(shell command -v chromium || command -v chromium-browser || command -v google-chrome)

test: $(READY)
	@test -n "$(BROWSER)" || echo "== no chromium on PATH: the report's browser tests are left out"
	$(BIN)/pytest $(SIDE_BY_SIDE) $(if $(BROWSER),,-m "not gpu and not browser")

check: $(READY)
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/pytest -q tests/test_house.py tests/test_documents.py

bench: $(READY)
	@mkdir -p out/bench
	@failed=; for name in $(BENCH); do \
		echo "== $$name"; $(BIN)/python -m tests.bench.$$name || failed="$$failed $$name"; \
	done; \
	if [ -n "$$failed" ]; then echo "make bench: failed:$$failed" >&2; exit 1; fi

format: $(READY)
	$(BIN)/ruff check --select I --fix
	$(BIN)/ruff format

clean:
	rm -rf out dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .coverage*
	find splitlearn parties tests $(wildcard examples) -name __pycache__ -type d -prune -exec rm -rf {} +

# UV_PYTHON keeps uv at the interpreter that is here: it would fetch the one of .python-version else.
$(READY): uv.lock pyproject.toml | $(UV)
	@echo "== preparing .venv from uv.lock (the first time, this fetches PyTorch)"
	@test -x $(BIN)/python || { python=$$($(PYTHON) .ci/get_uv.py --python) \
		&& UV_PYTHON_DOWNLOADS=never $(UV) venv --python "$$python" .venv; }
	UV_HTTP_TIMEOUT=300 UV_PYTHON=$(BIN)/python UV_PYTHON_DOWNLOADS=never $(UV) sync --locked --all-extras --compile-bytecode
	@touch $@

.uv/bin/uv:
	@echo "== no uv on PATH: putting a pinned one into .uv/"
	$(PYTHON) .ci/get_uv.py
