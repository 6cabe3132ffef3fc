# `make demo` and `make test` do all their own set-up in .venv, from a fresh clone. `make help` lists the targets.
#
#   PYTHON           the interpreter that makes the venv (3.11 or newer)
#   DEVICE           cpu (default) or cuda: which build of torch is installed, and where the models run
#   TORCH_INDEX_URL  an extra package index that has the build of torch you want; PyTorch's installation page names them
#   TEST_PROCESSES   how many processes run the tests (2); 0 runs them in one, where a debugger works
#   PYTEST_ARGS      what the targets of tests pass to pytest, such as `-k cache -x`
#   VALUES           a file of the chart's values, for `make manifests`; NAMESPACE is theirs

# One at a time: not every shell looks further than the first name.
NEWER := python3.11 python3.12 python3.13
PYTHON ?= $(firstword $(shell for name in $(NEWER); do if command -v $$name >/dev/null; then echo $$name; fi; done) python3)
DEVICE ?= cpu
TORCH_INDEX_URL ?=
TEST_PROCESSES ?= 2
PYTEST_ARGS ?=
VALUES ?= deploy/helm/pentimento/examples/trial.yaml
NAMESPACE ?= pentimento

# Modules are compiled as they are first imported, a tenth of all that is installed, and kept: services and tests import
# the same ones in process after process.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
BIN := $(VENV)/bin
# A run of tests ends by itself: after TEST_LIMIT, several times what it takes on a slow machine, it is interrupted.
TEST_LIMIT ?= 40m
PYTEST = timeout --foreground --signal=INT --kill-after=60 $(TEST_LIMIT) \
	$(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist loadfile --max-worker-restart=2
# Tests with these marks have runs of their own.
TOGETHER := -m "not compose and not faults and not training and not gpu"
# The folders in which tests have a mark: to look through all for them takes half a minute.
MARKED = $(sort $(dir $(shell grep -rl --include='*.py' 'mark\.$(1)\b' tests)))
# Where the product looks for plug-ins, and what that code is made of.
PRODUCT = cli controller service settings supervisor
INSTALL := $(BIN)/python -m pip --disable-pip-version-check install -qq --no-compile
CONSTRAINTS := constraints/$(DEVICE).txt
TORCH := $(shell sed -n 's/^\(torch==[^ ]*\).*/\1/p' constraints/cpu.txt)
EXTRA_INDEX := $(if $(TORCH_INDEX_URL),--extra-index-url $(TORCH_INDEX_URL))
ifeq ($(wildcard $(CONSTRAINTS)),)
$(error DEVICE must be cpu or cuda, got '$(DEVICE)')
endif
# On Linux the CPU build carries a label of its own. Asking for it by name is what keeps gigabytes of CUDA packages away.
ifeq ($(DEVICE)-$(shell uname -s),cpu-Linux)
TORCH_BUILDS := "$(TORCH)+cpu" "$(TORCH)"
else
TORCH_BUILDS := "$(TORCH)"
endif

# A stamp file for each thing installed: the second run has nothing to do until what it was made from changes.
MADE := $(VENV)/.made
TORCH_READY := $(VENV)/.torch-$(DEVICE)
DEMO_READY := $(VENV)/.installed-all-$(DEVICE)
DEV_READY := $(VENV)/.installed-dev-$(DEVICE)
DOCS_READY := $(VENV)/.installed-docs
BENCH_READY := $(VENV)/.installed-bench-$(DEVICE)

.DEFAULT_GOAL := help
.PHONY: help demo test test-rest test-all test-product test-faults test-training test-kernels test-gpu fuzz lint docs contracts sbom audit format protos reference manifests client-wheel bench bench-quick setup clean distclean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22

demo: $(DEMO_READY) ## start the suite with the tiny models, generate a few images through all services, stop it again
	$(BIN)/python scripts/demo.py

test: $(DEV_READY) ## units, contracts and services without torch, in at most five minutes on two cores
	$(PYTEST) --tier first $(TOGETHER) $(PYTEST_ARGS)

test-rest: $(DEV_READY) ## the tests that `make test` leaves out: PostgreSQL, S3, torch, whole suites, slow ones
	$(PYTEST) --tier second $(TOGETHER) $(PYTEST_ARGS)

test-all: test test-rest ## both: every test but those of the next targets, and those of a container engine or a GPU

test-product: $(DEV_READY) ## fast tests of the product with the lab hidden, as where pentimento alone is installed
	PYTHONPATH=tests/without_lab $(PYTEST) $(addprefix tests/unit/,$(PRODUCT)) $(PYTEST_ARGS)

test-faults: $(DEV_READY) ## kills and stops of real processes under load
	$(PYTEST) -m faults $(call MARKED,faults) $(PYTEST_ARGS)

test-training: $(DEV_READY) ## short trainings of every part of the zoo, interrupted and resumed
	$(PYTEST) -m training $(call MARKED,training) $(PYTEST_ARGS)

fuzz: $(DEV_READY) ## damaged files and messages for every parser, about an hour; before a release
	FUZZ_EXAMPLES=30000 $(BIN)/python -m pytest -n $(TEST_PROCESSES) tests/unit/fuzz $(PYTEST_ARGS)

test-kernels: $(DEV_READY) ## the fused kernels in Triton's interpreter, on a CPU (installs Triton beside the venv's packages)
	@[ -d $(VENV)/triton ] || $(INSTALL) --no-deps -c $(CONSTRAINTS) --target $(VENV)/triton triton
	PYTHONPATH=$(VENV)/triton $(BIN)/python -m pytest tests/unit/diffusion/kernels $(PYTEST_ARGS)

test-gpu: $(DEV_READY) ## with DEVICE=cuda: images against diffusers on the GPU, the suite on it, tensors in its memory
	$(BIN)/python -m pytest -m gpu $(PYTEST_ARGS)

lint: $(DEV_READY) ## ruff, mypy --strict, the import law, the contracts, generated code, what pages name, and the counts of odd phrases
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict -p pentimento -p services -p lab
	$(BIN)/mypy -p benchmarks
	$(BIN)/lint-imports
	cd protos && ../$(BIN)/buf lint
	$(BIN)/python scripts/generate_protos.py --check
	$(BIN)/python scripts/generate_reference.py --check
	$(BIN)/python scripts/draw_diagrams.py --check
	$(BIN)/python scripts/check_pages.py
	$(BIN)/python scripts/check_words.py
	$(BIN)/python scripts/check_code.py

docs: $(DOCS_READY) ## build the site in build/site, with the gRPC and HTTP references, and check every link
	$(BIN)/python scripts/build_site.py

contracts: $(DEV_READY) ## what in the contracts would break a peer of the last version; fails from version 1.0 on
	$(BIN)/python scripts/breaking_contracts.py

sbom: $(DEV_READY) ## build/sbom: a CycloneDX file of the Python packages in each image
	$(BIN)/python scripts/sbom.py

audit: $(DEV_READY) ## known vulnerabilities of the pinned versions, by OSV; constraints/accepted.toml lists exceptions
	$(BIN)/python scripts/audit.py

format: $(DEV_READY) ## put the code into the project's form
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

protos: $(DEV_READY) ## regenerate the code of the contracts
	$(BIN)/python scripts/generate_protos.py

reference: $(DEV_READY) ## regenerate the committed reference pages: settings, metrics, reasons
	$(BIN)/python scripts/generate_reference.py

manifests: $(DEV_READY) ## build/kubernetes: the chart's manifests for VALUES, as a base of kustomize
	@mkdir -p build/kubernetes
	$(VENV)/chart/helm template pentimento deploy/helm/pentimento --namespace $(NAMESPACE) --no-hooks --values $(VALUES) > build/kubernetes/pentimento.yaml
	@printf 'resources: [pentimento.yaml]\n' > build/kubernetes/kustomization.yaml

client-wheel: $(DEV_READY) ## dist/pentimento_protos-*.whl: the contracts alone, for clients in Python
	$(BIN)/python scripts/build_client_wheel.py

# All but those that need something no clone has: docs/benchmarks.md names them, each with its reason.
BENCHMARKS := golden_families controlnet_golden controlnet_service controlnet_parallel controlnet_residency \
	lora_golden lora_batch lora_async lora_patch load_speed latent_parallel batch_invariance effects_replay \
	engine_latency engine_throughput engine_preempt engine_lag \
	overhead cold_start console first_preview kill_one kill_any overload http_overhead http_overload \
	adapter_latency adapter_load adapter_quality scaling cells hostile soak mutation \
	cache_parity cache_lookup cache_update selector_profile mixture_quality handover reuse_keys \
	online_quality online_quality_live earned_reuse first_hour embedder_rate latent_storage isolation \
	dispatch_cost sim_scale milp parity slo_trace slo_trace_live deferral_live thinning_live joint monitor mixture_switch \
	energy paper_figures tensor_transport component_cache many_models mlora_e2e scale_up switch_gap fused chart scaler traces

bench: $(BENCH_READY) ## every figure that a clone can measure, written to benchmarks/results (hours, on an idle machine)
	@for name in $(BENCHMARKS); do echo "== $$name"; $(BIN)/python -m benchmarks.$$name $(BENCH_ARGS) || short="$$short $$name"; done; \
	if [ -n "$$short" ]; then echo "short:$$short"; exit 1; fi

bench-quick: ## the same with few samples: shows that they run
	@$(MAKE) bench BENCH_ARGS=--quick

setup: $(DEV_READY) ## only the set-up of the other targets

$(MADE):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "Python 3.11 or newer is needed; '$(PYTHON)' is not. Name one: make PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -m venv $(VENV)
	@touch $@

# torch before whatever depends on it, so that nothing else chooses its build.
$(TORCH_READY): $(MADE) $(CONSTRAINTS)
	@for build in $(TORCH_BUILDS); do \
	  case "$$build" in *+cpu) ;; *) [ "$(words $(TORCH_BUILDS))" = 1 ] || { \
	    echo "No package index here has $(TORCH)+cpu: going on with the default build, which brings CUDA along (several GB)."; \
	    echo "To avoid that, stop this and name an index that has it (PyTorch's installation page lists them):"; \
	    echo "  make $(MAKECMDGOALS) TORCH_INDEX_URL=…"; } ;; esac; \
	  echo "Installing $$build …"; \
	  if $(INSTALL) $(EXTRA_INDEX) -c $(CONSTRAINTS) "$$build"; then installed=yes; break; fi; \
	done; [ "$$installed" = yes ] || { \
	  echo "$(TORCH) could not be installed. Name an index that has it: make $(MAKECMDGOALS) TORCH_INDEX_URL=…"; exit 1; }
	@rm -f $(VENV)/.torch-* $(VENV)/.installed-* && touch $@

$(DEMO_READY): $(TORCH_READY) pyproject.toml constraints/base.txt
	@echo "Installing what the suite needs (a few minutes, once) …"
	@$(INSTALL) $(EXTRA_INDEX) -c $(CONSTRAINTS) --editable ".[all]"
	@touch $@

$(DEV_READY): $(TORCH_READY) pyproject.toml lab/pyproject.toml constraints/base.txt
	@echo "Installing what the suite and its tests need (a few minutes, once) …"
	@$(INSTALL) $(EXTRA_INDEX) -c $(CONSTRAINTS) --editable ".[dev]" --editable lab
	@$(BIN)/python scripts/fetch_chart_tools.py || true
	@touch $@ $(DEMO_READY)

# The site needs no torch: the extra has only the packages that its generated pages are made from.
$(DOCS_READY): $(MADE) pyproject.toml constraints/base.txt
	@$(INSTALL) -c constraints/base.txt --editable ".[docs]"
	@touch $@

$(BENCH_READY): $(DEV_READY)
	@echo "Installing what the benchmarks compare with …"
	@$(INSTALL) $(EXTRA_INDEX) -c $(CONSTRAINTS) --editable ".[bench]"
	@touch $@

clean: ## what tests, builds and runs left behind (the venv stays)
	rm -rf .pentimento demo-images build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean ## the venv too
	rm -rf $(VENV)
