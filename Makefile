# The front door. `make help` lists the targets.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
SUDO   := $(if $(filter 0,$(shell id -u)),,sudo)
ARGS   ?=
IMAGE  ?= gpu-exporter:local

.DEFAULT_GOAL := help
.PHONY: help run demo quick test coverage lint generate image bench soak tools

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "%-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: $(VENV)/run ## Set up everything and serve on :9400: the GPUs of this machine, or a recording if there are none
	@if $(BIN)/gpu-exporter doctor --quiet; then exec $(BIN)/gpu-exporter serve $(ARGS); \
	else $(BIN)/gpu-exporter doctor | sed -n 's/^FAIL  *//p' >&2; $(MAKE) --no-print-directory demo; fi

demo: $(VENV)/run ## Serve a recording of real H200s, labelled as replayed
	@exec $(BIN)/gpu-exporter serve --source replay --recording h200_workloads $(ARGS)

test: lint tools ## Set up everything, check the style and run the tests
	$(BIN)/python -m pytest --numprocesses 3 --dist worksteal $(ARGS)

coverage: $(VENV)/dev tools ## Run the tests and print which lines no test runs; takes half as long again
	$(BIN)/python -m pytest --numprocesses 3 --dist worksteal --cov --cov-report=term $(ARGS)

quick: $(VENV)/dev ## Run the fast unit tests: about a minute on two free cores
	$(BIN)/python -m pytest tests/unit -m 'not slow' --numprocesses 2 --dist worksteal $(ARGS)

lint: $(VENV)/dev ## Check style, types, import contracts and rendered files
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --verbose --no-cache
	$(BIN)/gpu-exporter generate --check

generate: $(VENV)/dev ## Write the files that are rendered from the catalogues
	$(BIN)/gpu-exporter generate

image: ## Build the container image with Docker: IMAGE=name, ARGS='--build-arg DIGEST=sha256:… --platform …'
	docker build --tag $(IMAGE) --build-arg VERSION=$$(sed -n 's/^__version__ = "\(.*\)"/\1/p' gpu_exporter/version.py) \
	  --build-arg REVISION=$$(git rev-parse --short HEAD) $(ARGS) .

bench: $(VENV)/bench tools ## Measure what this machine can, beside peers, and write docs/performance.md: ARGS='cost web'
	$(BIN)/python -m benchmarks $(ARGS)
	$(BIN)/python -m benchmarks.report

soak: $(VENV)/dev tools ## Long proofs: half an hour of faults on the stand-in driver, a DCGM that hangs for 90 s, 200 000 simulated ticks, a million kernel-log lines, every protobuf, many examples, fleets of 800 and of 8000 GPUs
	$(BIN)/python -m tests.soak.faults $(ARGS)
	$(BIN)/python -m tests.soak.ticks
	$(BIN)/python -m tests.soak.dcgm
	$(BIN)/python -m tests.soak.kernel_log
	$(BIN)/python -m tests.soak.protobuf
	$(BIN)/python -m pytest tests/unit --hypothesis-profile soak
	$(BIN)/python -m benchmarks.fleet --json /dev/null
	$(BIN)/python -m benchmarks.scale --seconds 600 --json benchmarks/results/scale.json
	$(BIN)/python -m benchmarks.scale --seconds 600 --metrics full --json benchmarks/results/scale_full.json

tools: .tools/done .tools/newer/done .tools/alerting .tools/victoria .tools/faketime ## Fetch what the tests need beside Python: a C compiler, Prometheus (two), Alertmanager, VictoriaMetrics, libfaketime

$(VENV)/run $(VENV)/dev $(VENV)/bench: setup.cfg pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "needs Python 3.10 or newer: make PYTHON=python3.12 …"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || $(SUDO) apt-get install -y python3-venv
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.$(if $(filter-out run,$(@F)),[$(@F)])'
	@touch $@

# Unpacked, not installed: Debian's packages would start a Prometheus on this machine.
.tools/done:
	@command -v cc >/dev/null || { $(SUDO) apt-get update && $(SUDO) apt-get install -y gcc libc6-dev; }
	@mkdir -p .tools
	@cd .tools && { apt-get download prometheus || { $(SUDO) apt-get update && apt-get download prometheus; }; }
	@cd .tools && dpkg -x prometheus_*.deb . && rm prometheus_*.deb && touch done

# Debian's Alertmanager reads its default templates from an absolute path when it starts, and has no option for it. The
# unpacked program gets a relative path of the same length instead, so that nothing is installed for it; the tests start
# it in .tools. (Mount namespaces need privileges that containers lack; the installed package would start a service.)
TEMPLATES := share/prometheus/alertmanager
.tools/alerting: | .tools/done
	@cd .tools && { apt-get download prometheus-alertmanager || { $(SUDO) apt-get update && apt-get download prometheus-alertmanager; }; }
	@cd .tools && dpkg -x prometheus-alertmanager_*.deb . && rm prometheus-alertmanager_*.deb
	@sed -i 's,/usr/$(TEMPLATES),usr//$(TEMPLATES),g' .tools/usr/bin/prometheus-alertmanager
	@touch $@

# What remote_write is tried against.
.tools/victoria: | .tools/done
	@cd .tools && { apt-get download victoria-metrics || { $(SUDO) apt-get update && apt-get download victoria-metrics; }; }
	@cd .tools && dpkg -x victoria-metrics_*.deb . && rm victoria-metrics_*.deb && touch victoria

# Sets the clock of one process.
.tools/faketime: | .tools/done
	@cd .tools && { apt-get download libfaketime || { $(SUDO) apt-get update && apt-get download libfaketime; }; }
	@cd .tools && dpkg -x libfaketime_*.deb . && rm libfaketime_*.deb && touch faketime

# Rules have to work on both: this distribution's Prometheus, and the newest.
.tools/newer/done: tests/newer_prometheus.sh | .tools/done
	@rm -rf .tools/newer
	@sh tests/newer_prometheus.sh .tools/newer && touch $@
