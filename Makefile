# `make help` lists the targets.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
SUDO   := $(if $(filter 0,$(shell id -u)),,sudo)
ARGS   ?=
IMAGE  ?= gpu-exporter:local
BUILDER ?= docker
# Processes of the slow tests: they mostly wait.
PROCESSES ?= 8
VERSION = $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' gpu_exporter/version.py)

# Runs tests in several processes, and those that failed once more by themselves: on a busy machine, a process may get no
# CPU for longer than a test can wait. A test that fails twice fails; one that passes then is named, so that it is mended.
define pytest
$(BIN)/python -m pytest $(1) $(2) --dist worksteal $(ARGS) || { [ $$? -eq 1 ] && \
  $(BIN)/python -m pytest $(1) --last-failed --last-failed-no-failures none --exitfirst -rA --show-capture=no $(ARGS); }
endef

# If it is set, every process of the tests compiles all modules.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help run demo demo-fault quick test test-all coverage lint generate docs docs-serve licenses lock image verify-image smoke bench boards screenshots pictures fuzz \
  soak tools wheel sbom bundle chart dist release verify push publish

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: $(VENV)/run ## Install everything and serve the GPUs of this machine on :9400, or a recording if it has none
	@if $(BIN)/gpu-exporter doctor --quiet; then exec $(BIN)/gpu-exporter serve $(ARGS); \
	else $(BIN)/gpu-exporter doctor | sed -n 's/^FAIL  *//p' >&2; $(MAKE) --no-print-directory demo; fi

demo: $(VENV)/run ## Serve a recording of real H200s on :9400; every series is labelled as replayed
	@exec $(BIN)/gpu-exporter serve --source replay --recording h200_workloads $(ARGS)

demo-fault: $(VENV)/run ## Serve a simulated job of eight GPUs on :9400, one of which is slow, and another is lost after 20 s
	@echo 'A simulated job of eight GPUs: GPU 3 is slow, and GPU 6 falls off the bus after 20 s. Open http://localhost:9400/'
	@echo 'Try in another terminal:'
	@echo '  $(BIN)/gpu-exporter diagnose --url http://localhost:9400'
	@echo '  $(BIN)/gpu-exporter top --url http://localhost:9400'
	@echo "  curl -s http://localhost:9400/metrics | grep -E '^gpu_(down|health)_reason'"
	@exec $(BIN)/gpu-exporter serve --source simulated --inject 'GpuStragglerSlow:3;GpuLost:6' $(ARGS)

test: lint .tools/done .tools/alerting ## Install what is needed, run the linters, the unit tests, and an end-to-end test for each promise of the README; takes less than five minutes
	$(call pytest,tests/promises tests/unit -m 'not slow',--numprocesses 4)

test-all: $(VENV)/dev tools ## Run all other tests, with Chromium, PyTorch, VictoriaMetrics, Node.js and a newer Prometheus; takes less than fifteen minutes
	$(call pytest,-m slow,--numprocesses $(PROCESSES))

coverage: $(VENV)/dev tools ## Run the tests and print which lines no test runs; takes half as long again
	$(BIN)/python -m pytest --numprocesses $(PROCESSES) --dist worksteal --cov --cov-report=term $(ARGS)

quick: $(VENV)/dev ## Run the fast unit tests, which take less than a minute on two idle cores
	$(BIN)/python -m pytest tests/unit -m 'not slow' --numprocesses 2 --dist worksteal $(ARGS)

lint: $(VENV)/dev ## Check style, types, import contracts and generated files
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --verbose --no-cache
	$(BIN)/python -m content --check
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yaml
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.dependabot .github/dependabot.yml
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/[!c]*.yml
	$(BIN)/zizmor --quiet --offline --strict-collection .github

generate: $(VENV)/dev ## Write the files that are generated from the catalogues
	$(BIN)/python -m content

docs: $(VENV)/docs ## Build the documentation site of this version into build/site, which opens without a server or a network
	$(BIN)/python -m release.site $(ARGS)

docs-serve: $(VENV)/docs ## Show the documentation on http://localhost:8000 while you edit it
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve $(ARGS)

licenses: $(VENV)/dev ## Write docs/licenses.md from the metadata of the installed packages
	$(BIN)/python -m release.licenses

screenshots: $(VENV)/dev .tools/chromium ## Take the pictures of the live page with simulated GPUs, and of a report on a trace, into docs/images and build/screenshots: ARGS=--compare only compares
	$(BIN)/python -m tests.page.shoot $(ARGS)

pictures: $(VENV)/dev .tools/chromium ## Make every picture of the docs: those of `top`, the live page, the report on a trace, and the dashboards
	$(BIN)/python -m benchmarks.top_picture
	$(BIN)/python -m tests.page.shoot
	$(MAKE) boards ARGS=--pictures

lock: $(VENV)/dev ## Write requirements/: the image's packages with versions and hashes
	@command -v uv >/dev/null || { echo "needs uv: pipx install uv"; exit 1; }
	$(BIN)/python -m release.lock

verify-image: ## Build the image twice, compare the layers, and run hadolint if it is installed: BUILDER=docker, podman or buildah
	sh release/verify_image.sh $(BUILDER)

image: ## Build the container image with Docker: IMAGE=name, ARGS='--platform …', or '--target dcgm-exporter' for one that replaces dcgm-exporter's
	docker build --tag $(IMAGE) --build-arg SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) --build-arg VERSION=$(VERSION) --build-arg REVISION=$$(git rev-parse --short HEAD) \
	  --build-arg SOURCE="$$(git config --get remote.origin.url | sed 's,://[^/@]*@,://,')" $(ARGS) .

smoke: ## Build both container images, and start each with simulated GPUs until its health check passes
	$(MAKE) image
	$(MAKE) image IMAGE=$(IMAGE)-dcgm-exporter ARGS='$(ARGS) --target dcgm-exporter'
	sh release/smoke.sh $(IMAGE) serve --source simulated
	sh release/smoke.sh $(IMAGE)-dcgm-exporter --source simulated

wheel: $(VENV)/dev ## Build the wheel and the sdist of the last commit into dist/; the same bytes on every machine
	$(BIN)/python -m release.build

sbom: wheel ## Install the wheel in an empty environment, check it, and list its packages in dist/ (CycloneDX)
	$(BIN)/python -m release.sbom

chart: $(VENV)/dev ## Package the Helm chart of the last commit into dist/; the same bytes on every machine
	$(BIN)/python -m release.chart

bundle: wheel ## Pack what `gpu-exporter bundle` of the wheel writes: rules, dashboards, runbooks, chart, examples
	$(BIN)/python -m release.bundle

dist: sbom bundle chart ## Build every file of a release into dist/, with checksums
	cd dist && sha256sum *-$(VERSION)[-.]* >SHA256SUMS

release: ## Date the changelog, commit and tag the version; prints the command that publishes it
	$(PYTHON) -m release.tag release

# The shell reads TAG and CHARTS from the environment: make would run `$(shell …)` in a tag's name.
verify: ## Check that TAG can be released: version, changelog; in the release workflow also branch and names
	$(PYTHON) -m release.tag verify "$$TAG"

push: ## Push the packaged chart to CHARTS, such as oci://registry.example/owner/charts; needs helm
	helm push dist/gpu-exporter-$(VERSION).tgz "$$CHARTS"

publish: ## Create the GitHub release of this version with the files of dist/; needs gh
	@mkdir -p build
	$(PYTHON) -m release.tag notes >build/notes.md
	gh release create v$(VERSION) --verify-tag --title "gpu-exporter $(VERSION)" --notes-file build/notes.md \
	  dist/*-$(VERSION)[-.]* dist/SHA256SUMS

bench: $(VENV)/bench tools ## Run the benchmarks that this machine supports and write docs/performance.md: ARGS='cost web' runs only these
	$(BIN)/python -m benchmarks $(ARGS)
	$(BIN)/python -m benchmarks.report

boards: $(VENV)/dev tools .tools/virtual_clock/virtual_clock .tools/boards/page/done ## Draw every dashboard with Grafana's components, on a simulated fleet with six faults, into build/boards: ARGS='--only fleet --fresh', '--pictures' for those of the docs
	@command -v chromium >/dev/null || { $(SUDO) apt-get update && $(SUDO) apt-get install -y chromium; }
	$(BIN)/python -m tests.boards $(ARGS)

fuzz: $(VENV)/dev ## Run 10 000 mutated inputs through each parser of untrusted input: ARGS='recording --inputs 500 --seed 2'
	$(BIN)/python -m tests.fuzz $(ARGS)

soak: $(VENV)/dev $(VENV)/mutation tools .tools/virtual_clock/virtual_clock ## Run the long tests: two weeks of operation, three times; half an hour of driver faults, a DCGM that hangs for 90 s, 200 000 simulated ticks, a million kernel-log lines, each version of protobuf, 100 000 histories and thirty days of the remediation controller, many generated examples, every failure mode in a fleet and in an older Prometheus, fault histories in two levels of Prometheus and in vmalert, fleets of 800, 8000 and 16 000 GPUs; print how many random mutants the unit tests notice; as root, ten minutes of all attacks in a memory cgroup
	$(BIN)/python -m tests.soak.faults $(ARGS)
	$(BIN)/python -m tests.soak.ticks
	$(BIN)/python -m tests.soak.trouble
	$(BIN)/python -m tests.soak.dcgm
	$(BIN)/python -m tests.soak.kernel_log
	$(BIN)/python -m tests.soak.protobuf
	$(BIN)/python -m tests.soak.remediation
	$(BIN)/python -m tests.soak.remediation_days
	$(BIN)/python -m pytest tests/unit --hypothesis-profile soak --long
	$(BIN)/python -m pytest tests/e2e/sources/test_inject.py tests/rules tests/docs/test_contributing.py tests/e2e/training/test_stragglers.py tests/fuzz --long
	$(BIN)/python -m tests.operation.run --composition usual --seed 1 --processes $$(nproc) --json tests/operation/results/usual-1.json
	$(BIN)/python -m tests.operation.run --composition usual --seed 2 --processes $$(nproc) --json tests/operation/results/usual-2.json
	$(BIN)/python -m tests.operation.run --composition other --seed 5 --processes $$(nproc) --json tests/operation/results/other-5.json
	$(BIN)/python -m tests.operation.report
	$(BIN)/python -m tests.scale.run
	$(BIN)/python -m benchmarks.fleet --json /dev/null
	$(BIN)/python -m benchmarks.scale --seconds 600 --json benchmarks/results/scale.json
	$(BIN)/python -m benchmarks.scale --seconds 600 --metrics full --json benchmarks/results/scale_full.json
	$(BIN)/python -m benchmarks.scale_victoria --json benchmarks/results/scale_victoria.json
	$(BIN)/python -m tests.soak.mutants --processes $$(nproc)
	$(BIN)/python -m tests.soak.storm

tools: .tools/done .tools/newer/done .tools/alerting .tools/victoria .tools/faketime .tools/valgrind .tools/boards/tables/done .tools/chromium .tools/torch ## Install what `make test-all` needs besides Python: a C compiler, two versions of Prometheus, Alertmanager, VictoriaMetrics, libfaketime, Valgrind, Node.js with Grafana's data library, Chromium, PyTorch

$(VENV)/run $(VENV)/dev $(VENV)/bench $(VENV)/docs $(VENV)/mutation: setup.cfg pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "needs Python 3.10 or newer: make PYTHON=python3.12 …"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || $(SUDO) apt-get install -y python3-venv
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$(if $(filter run,$(@F)),top,$(@F))]'
	@touch $@

# The packages are unpacked, not installed: installed, they would start a Prometheus on this machine.
.tools/done:
	@command -v cc >/dev/null || { $(SUDO) apt-get update && $(SUDO) apt-get install -y gcc libc6-dev; }
	@mkdir -p .tools
	@cd .tools && { apt-get download prometheus || { $(SUDO) apt-get update && apt-get download prometheus; }; }
	@cd .tools && dpkg -x prometheus_*.deb . && rm prometheus_*.deb && touch done

# Debian's Alertmanager reads its default templates from an absolute path, which no option changes. In the unpacked
# program the path is replaced by a relative one of the same length, so that nothing has to be installed; the tests start
# it in .tools. (Mount namespaces need privileges that containers lack; the installed package would start a service.)
TEMPLATES := share/prometheus/alertmanager
.tools/alerting: | .tools/done
	@cd .tools && { apt-get download prometheus-alertmanager || { $(SUDO) apt-get update && apt-get download prometheus-alertmanager; }; }
	@cd .tools && dpkg -x prometheus-alertmanager_*.deb . && rm prometheus-alertmanager_*.deb
	@sed -i 's,/usr/$(TEMPLATES),usr//$(TEMPLATES),g' .tools/usr/bin/prometheus-alertmanager
	@touch $@

# The receiver in the tests of remote_write.
.tools/victoria: | .tools/done
	@cd .tools && { apt-get download victoria-metrics || { $(SUDO) apt-get update && apt-get download victoria-metrics; }; }
	@cd .tools && dpkg -x victoria-metrics_*.deb . && rm victoria-metrics_*.deb && touch victoria

# Sets the clock of one process.
.tools/faketime: | .tools/done
	@cd .tools && { apt-get download libfaketime || { $(SUDO) apt-get update && apt-get download libfaketime; }; }
	@cd .tools && dpkg -x libfaketime_*.deb . && rm libfaketime_*.deb && touch faketime

# Counts instructions.
.tools/valgrind: | .tools/done
	@cd .tools && { apt-get download valgrind || { $(SUDO) apt-get update && apt-get download valgrind; }; }
	@cd .tools && dpkg -x valgrind_*.deb . && rm valgrind_*.deb && touch valgrind

# Grafana's libraries: for the tests only the one without components, which needs no browser.
.tools/boards/%/done: tests/boards/%/package-lock.json | .tools/done
	@command -v npm >/dev/null || { $(SUDO) apt-get update && $(SUDO) apt-get install -y nodejs npm; }
	@mkdir -p $(@D) && cp tests/boards/$*/package.json tests/boards/$*/package-lock.json $(@D)
	@cd $(@D) && npm ci --silent --ignore-scripts --no-audit --no-fund && touch done

# Shows the live page in the tests. Installed, not unpacked: it needs dozens of libraries.
.tools/chromium:
	@command -v chromium >/dev/null || { $(SUDO) apt-get update && $(SUDO) apt-get install -y chromium; }
	@mkdir -p .tools && touch $@

# PyTorch without CUDA, for the system's Python. With its libraries it is a download of 150 MB, where PyPI's has gigabytes.
.tools/torch:
	@/usr/bin/python3 -c 'import torch' 2>/dev/null || { $(SUDO) apt-get update && $(SUDO) apt-get install -y --no-install-recommends python3-torch; }
	@mkdir -p .tools && touch $@

# Runs rules over weeks of generated scrapes, for `make soak` and `make boards`.
.tools/virtual_clock/virtual_clock: tests/operation/virtual_clock/build.sh tests/operation/virtual_clock/main.go
	@sh tests/operation/virtual_clock/build.sh .tools/virtual_clock

# The rules must work on both: the Prometheus of this distribution and the newest.
.tools/newer/done: tests/newer_prometheus.sh | .tools/done
	@rm -rf .tools/newer
	@sh tests/newer_prometheus.sh .tools/newer && touch $@
