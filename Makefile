# Every target creates .venv and installs what it needs; it does so again when dependencies change.
PYTHON ?= python3
BIN := .venv/bin
RUN_READY := .venv/.ready
DEV_READY := .venv/.ready-dev
TEXT_READY := .venv/.ready-text
DOCS_READY := .venv/.ready-docs
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt
SAY_INSTALLING := echo "installing into .venv: a minute or two, once ..." >&2

.DEFAULT_GOAL := help
.PHONY: help corpus tables sweep paper general report plan list bench gpu ray tpu extra docs lint test test-all wheel clean
# Commands then advise `make ...`, not `topicjax ...`.
corpus tables sweep paper general report plan list bench: export TOPICJAX_FROM_MAKE := 1
SWEEP ?= two_stage
CUDA ?= 12
FOLDER ?= results/$(basename $(notdir $(SWEEP)))
# The sweeps of the paper that need no text: each names the claims it is about (CLAIMS in its file).
PAPER ?= theorem1 theorem3 remark6 onset value_matrix embeddings joint joint_loss paper_rates \
  two_stage key_visibility init_law robustness depth budget forced_stages gradients remark1 theorem3_limit pairs
# Those that ask how general its two stages are.
GENERAL ?= softmax_control seed_causes dilution learning_coefficient syntax syntax_depth

# Reads what `topicjax plan --json` printed, one file per sweep: a line for each, and their sum.
define SUM_OF_PLANS
import json, sys
from pathlib import Path
from topicjax.errors import duration

def line(name, plans):
    trials, left, training, compiling = (
        sum(plan[key] or 0 for plan in plans) for key in ("trials", "left", "seconds", "compile_seconds")
    )
    return f"  {name}: {trials:,} trials, {left:,} left: training {duration(training)}, compiling {duration(compiling)}"

plans = [json.loads(Path(file).read_text()) for file in sys.argv[1:]]
print(*(line(plan["sweep"], [plan]) for plan in plans), sep="\n")
print(line(f"all {len(plans)} sweeps", plans) + "; pages on top")
endef
export SUM_OF_PLANS

help:  ## what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Python 3.11 or newer is needed; name one with: make PYTHON=python3.12"; exit 2; }
	@$(PYTHON) -m venv .venv

$(RUN_READY): pyproject.toml constraints.txt | $(BIN)/pip
	@$(SAY_INSTALLING)
	@$(INSTALL) --editable .
	@touch $@

$(DEV_READY): $(RUN_READY)
	@$(SAY_INSTALLING)
	@$(INSTALL) --editable '.[dev]'
	@touch $@

$(TEXT_READY): $(RUN_READY)
	@$(SAY_INSTALLING)
	@$(INSTALL) --editable '.[text]'
	@touch $@

$(DOCS_READY): $(RUN_READY)
	@$(SAY_INSTALLING)
	@$(INSTALL) --editable '.[docs]'
	@touch $@

corpus: $(RUN_READY)  ## the words of Wikipedia for the sweeps on text, or of your own: make corpus [TEXT=my.txt]
	@$(BIN)/topicjax corpus $(if $(TEXT),--text $(TEXT)) $(ARGS)

tables: $(TEXT_READY)  ## topics in pretrained models (Figure 3, Tables 1 and 2): make tables [ARGS="mpnet"]
	@$(BIN)/topicjax corpus
	@$(BIN)/topicjax probe $(ARGS)

sweep: $(RUN_READY)  ## train a sweep, or continue it: make sweep SWEEP=two_stage [ARGS="--set steps=200"]
	@$(BIN)/topicjax run $(SWEEP) $(ARGS)

paper: $(RUN_READY)  ## every claim of the paper on synthetic data: sweeps, pages, results/paper.html
	@echo "plan (finished trials are kept; the same command continues):"
	@mkdir -p .venv/plans
	@for sweep in $(PAPER); do \
	  $(BIN)/topicjax plan $$sweep $(ARGS) --json > .venv/plans/$$sweep.json || exit $$?; \
	done
	@$(BIN)/python -c "$$SUM_OF_PLANS" $(PAPER:%=.venv/plans/%.json)
	@for sweep in $(PAPER); do \
	  $(BIN)/topicjax run $$sweep $(ARGS) || exit $$?; \
	  $(BIN)/topicjax report results/$$sweep || exit $$?; \
	done
	@$(BIN)/topicjax claims $(addprefix results/,$(PAPER)) --out results/paper.html

general: $(RUN_READY)  ## is two-stage general?  controls, other models and data: sweeps, pages, results/general.html
	@for sweep in two_stage depth $(GENERAL) docs/markov.py; do \
	  $(BIN)/topicjax run $$sweep $(ARGS) || exit $$?; \
	done
	@$(BIN)/topicjax measure results/learning_coefficient learning_coefficient
	@for run in two_stage depth $(GENERAL) markov; do $(BIN)/topicjax report results/$$run || exit $$?; done
	@$(BIN)/topicjax general $(addprefix results/,two_stage softmax_control depth syntax syntax_depth markov) \
	  $(wildcard results/wikipedia)

report: $(RUN_READY)  ## report.html of a run: make report SWEEP=two_stage [FOLDER=results/quick] [ARGS="--x steps"]
	@$(BIN)/topicjax report $(FOLDER) $(ARGS)

plan: $(RUN_READY)  ## what a sweep would do and cost: make plan SWEEP=two_stage_map
	@$(BIN)/topicjax plan $(SWEEP) $(ARGS)

list: $(RUN_READY)  ## the sweeps there are
	@$(BIN)/topicjax list

bench: $(RUN_READY)  ## how fast this machine is, as ratios
	@$(BIN)/topicjax bench $(ARGS)

gpu: $(RUN_READY)  ## install JAX for NVIDIA GPUs too: make gpu [CUDA=13]
	@$(SAY_INSTALLING)
	@$(INSTALL) --editable '.[cuda$(CUDA)]'

ray: $(RUN_READY)  ## install Ray too, for sweeps on a cluster (--cluster)
	@$(SAY_INSTALLING)
	@$(INSTALL) --editable '.[ray]'

tpu: $(RUN_READY)  ## install JAX for TPUs too
	@$(SAY_INSTALLING)
	@$(INSTALL) --editable '.[tpu]'

extra: $(RUN_READY)  ## install an extra of pyproject.toml too: make extra EXTRA=tensorboard
	@$(SAY_INSTALLING)
	@$(INSTALL) --editable '.[$(EXTRA)]'

docs: $(DOCS_READY)  ## the documentation site, in build/docs/html; works offline, warnings are errors
	@$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going -d build/docs/doctrees docs build/docs/html
	@echo "build/docs/html/index.html: open it in a browser"

lint: $(DEV_READY)  ## format check, lint, types, workflows
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/zizmor --offline --quiet --strict-collection .github

test: lint  ## lint, then the tests that take minutes at most
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder

test-all: lint  ## lint, then every test, the long runs too
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder -m 'slow or not slow'

wheel: $(DEV_READY)  ## the wheel and the source archive, in dist/
	$(BIN)/python -m build --outdir dist .

clean:  ## remove the environment and caches; keeps results/
	rm -rf .venv .pytest_cache .ruff_cache build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
