"""What a start imports: only what the command uses. Modules are counted, because time depends on the machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

import pytest

from gpu_exporter.cli.commands import SUMMARIES

# Imports that take long or much memory, which most commands do not need.
EXPENSIVE = {
    "asyncio",
    "backports.zstd",
    "dask",
    "distributed",
    "fsspec",
    "google.protobuf",
    "gpu_exporter.catalogue.failure_modes",
    "gpu_exporter.catalogue.signals",
    "gpu_exporter.diagnosis",
    "gpu_exporter.events.kernel_log_parser",
    "gpu_exporter.host",
    "gpu_exporter.app.library",
    "gpu_exporter.active_checks",
    "gpu_exporter.profiling",
    "gpu_exporter.remediation",
    "gpu_exporter.alerting",
    "gpu_exporter.app.run",
    "gpu_exporter.http",
    "grafana_foundation_sdk",
    "grafanalib",
    "http.client",
    "msgspec",
    "numpy",
    "prometheus_client",
    "pynvml",
    "rich",
    "ssl",
    "statistics",
    "tornado",
    "yaml",
}
RENDERING = {
    "gpu_exporter.catalogue.failure_modes",
    "gpu_exporter.catalogue.signals",
    "gpu_exporter.alerting",
    "yaml",
}
# What the help of a command needs of these, which includes the options.
OF_HELP = {
    "bundle": RENDERING,
    "doctor": {"gpu_exporter.http", "http.client", "ssl"},
    "events": {"gpu_exporter.events.kernel_log_parser"},
    "once": {"gpu_exporter.app.library"},
}


def loaded(tmp_path: Path, arguments: Sequence[str], **environment: str) -> tuple[set[str], str]:
    """Run gpu-exporter in a new interpreter; return the modules that are loaded at its end, and stdout.

    All connections are refused: `diagnose` would ask an exporter that serves on the default port of this machine.
    """
    file = tmp_path / "modules"
    program = (
        f"import atexit, socket, sys; sys.argv = {['gpu-exporter', *arguments]!r}\n"
        "def refuse(*arguments): raise ConnectionRefusedError\n"
        "socket.create_connection = refuse\n"
        f"atexit.register(lambda: open({str(file)!r}, 'w').write(' '.join(sys.modules)))\n"
        "from gpu_exporter.cli.main import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env={**os.environ, **environment}
    )
    return set(file.read_text().split()), done.stdout


def commands(modules: Collection[str]) -> set[str]:
    return {name for name in SUMMARIES if f"gpu_exporter.cli.{name}" in modules}


@pytest.mark.parametrize("argument", ["--help", "-h", "--version"])
def test_help_imports_no_command(tmp_path: Path, argument: str) -> None:
    modules, text = loaded(tmp_path, [argument])

    assert text
    assert {name for name in modules if name.partition(".")[0] == "gpu_exporter"} == {
        "gpu_exporter",
        "gpu_exporter.cli",
        "gpu_exporter.cli.commands",
        "gpu_exporter.cli.group",
        "gpu_exporter.cli.main",
        "gpu_exporter.model",
        "gpu_exporter.model.errors",
        "gpu_exporter.version",
    }


def test_completion_imports_no_command(tmp_path: Path) -> None:
    words = {"COMP_WORDS": "gpu-exporter re", "COMP_CWORD": "1"}
    modules, text = loaded(tmp_path, [], _GPU_EXPORTER_COMPLETE="bash_complete", **words)

    assert text.split() == ["plain,record", "plain,rewrite", "plain,release", "plain,resume", "plain,remediate"]
    assert commands(modules) == set()


@pytest.mark.parametrize("name", SUMMARIES)
def test_a_command_imports_no_other(tmp_path: Path, name: str) -> None:
    modules, text = loaded(tmp_path, [name, "--help"])

    assert "Options" in text or "Other" in text
    assert commands(modules) == {name}
    assert modules & EXPENSIVE == OF_HELP.get(name, set())


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("events --kernel-log /dev/null", {"gpu_exporter.events.kernel_log_parser"}),
        ("metrics power", set()),
        ("check --source nvml", {"pynvml"}),
        ("once --source nvml --json", {"gpu_exporter.app.library", "pynvml"}),
        ("once --source nvml", {"gpu_exporter.app.library", "pynvml"}),
        (
            "diagnose --source nvml --for 1s",
            {
                "gpu_exporter.catalogue.failure_modes",
                "gpu_exporter.catalogue.signals",
                "gpu_exporter.diagnosis",
                "gpu_exporter.events.kernel_log_parser",
                "gpu_exporter.host",
                "pynvml",
            },
        ),
    ],
)
def test_a_run_imports_only_what_it_uses(tmp_path: Path, arguments: str, expected: set[str]) -> None:
    modules, _ = loaded(tmp_path, arguments.split())

    assert modules & EXPENSIVE == expected
