"""Unforeseen errors are one line, too, and never have the exit code of a result."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Serve, command, run
from tests.support.tools import LIMIT, until

REPLAY = ("--source", "replay", "--recording", "h200_workloads")
# Runs a command in which a function raises an error that no command expects.
BROKEN = """
import gpu_exporter.{module} as module
def fail(*arguments, **options):
    raise TypeError("no\\nsuch thing")
module.{name} = fail
import sys
sys.argv = {arguments}
from gpu_exporter.cli.main import main
main()
"""
UNFORESEEN = (
    ("pipeline.monitor", "observe", ("check", *REPLAY)),
    ("pipeline.monitor", "observe", ("once", *REPLAY)),
    ("diagnosis.diagnose", "diagnose", ("diagnose", *REPLAY)),
    ("doctor.examine", "examine", ("doctor", *REPLAY)),
)


def broken(module: str, name: str, arguments: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    """Run a command in which this function raises TypeError."""
    text = BROKEN.format(module=module, name=name, arguments=["gpu-exporter", *arguments])
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=LIMIT)


@pytest.mark.parametrize(("module", "name", "arguments"), UNFORESEEN, ids=lambda value: str(value)[:30])
def test_an_unforeseen_error_is_one_line_and_no_result(module: str, name: str, arguments: tuple[str, ...]) -> None:
    """Exit code 2, since 1 means that `diagnose` found something. `--debug` shows the traceback."""
    ended = broken(module, name, arguments)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == (
        "gpu-exporter: unexpected error: TypeError: no such thing; please report it with the traceback that --debug"
        " shows\n"
    )


def test_debug_shows_the_traceback() -> None:
    """Before and after the command."""
    module, name, arguments = UNFORESEEN[2]
    for line in (("--debug", *arguments), (*arguments, "--debug")):
        ended = broken(module, name, line)
        assert ended.returncode == 2
        assert "Traceback (most recent call last)" in ended.stderr
        assert "TypeError: no" in ended.stderr


@pytest.mark.parametrize("arguments", [("diagnose",), ("doctor",)])
def test_a_faulty_configuration_is_no_result(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """Commands whose exit code 1 is a result exit with 2 if they cannot start."""
    path = tmp_path / "config.yaml"
    path.write_text("foo: 1")
    ended = run(*arguments, "--config", str(path))
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == f"gpu-exporter: config {path}: unknown key 'foo'\n"
    ended = run(*arguments, "--source", "nvml", "--recording", "x")
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize("mebibytes", [40, 60, 96, 200])
@pytest.mark.parametrize("arguments", [("serve", *REPLAY, "--address", "127.0.0.1:0"), ("once", *REPLAY)])
def test_too_little_memory_is_one_line(mebibytes: int, arguments: tuple[str, ...]) -> None:
    """Whether an import, an allocation or a thread fails first."""
    limited = ["prlimit", f"--as={mebibytes << 20}", *command(*arguments)]
    process = subprocess.Popen(limited, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        _, log = process.communicate(timeout=10)
    except subprocess.TimeoutExpired:  # there is enough memory: it serves
        process.kill()
        _, log = process.communicate()
    assert "Traceback" not in log
    if process.returncode == 2:
        lines = [line for line in log.splitlines() if line.startswith("gpu-exporter: ")]
        assert any("memory" in line for line in lines), log


def test_warning_of_unknown_variables(serve: Serve) -> None:
    """In the log of `serve`, on stderr of other commands. Variables of a Kubernetes Service are ignored."""
    env = {"GPU_EXPORTER_INTERVALL": "2s", "GPU_EXPORTER_PORT": "tcp://1.2.3.4:9400"}
    said = "GPU_EXPORTER_INTERVALL is ignored: it is not a setting; did you mean GPU_EXPORTER_INTERVAL?"
    exporter = serve(*REPLAY, env=env)
    assert f"WARNING {said}\n" in exporter.log.read_text()
    assert "GPU_EXPORTER_PORT " not in exporter.log.read_text()
    ended = run("metrics", "gpu_up", env=env)
    assert (ended.returncode, ended.stderr) == (0, f"gpu-exporter: warning: {said}\n")


def test_serve_prints_the_url_and_the_next_step(serve: Serve) -> None:
    """As log lines, also in JSON."""
    exporter = serve(*REPLAY)
    next_step = f"`gpu-exporter diagnose --url http://127.0.0.1:{exporter.port}`"
    until(lambda: next_step in exporter.log.read_text(), what="the next step")
    assert f"open http://127.0.0.1:{exporter.port}/ in a browser" in exporter.log.read_text()
    exporter = serve(*REPLAY, "--log-format", "json")
    next_step = f"diagnose --url http://127.0.0.1:{exporter.port}`"
    until(lambda: next_step in exporter.log.read_text(), what="the next step")
    assert all(line.startswith("{") for line in exporter.log.read_text().splitlines())


@pytest.mark.parametrize("name", ["nope", "h200_worklods"])
def test_an_unknown_recording_lists_the_packaged_ones(name: str) -> None:
    ended = run("once", "--source", "replay", "--recording", name)
    assert ended.returncode == 2
    assert f"recording {name}: no such file; use a file or one of the packaged recordings: h200_work" in ended.stderr
    assert ("did you mean h200_workloads?" in ended.stderr) == (name != "nope")


def test_a_switch_still_takes_a_value(serve: Serve) -> None:
    """Older versions required `--loop false` or `--loop=false`."""
    for form in (("--loop", "false"), ("--loop=false",), ("--no-loop",)):
        exporter = serve(*REPLAY, *form, "--speed", "9999")
        exporter.until(lambda page: page.values("gpu_up") == [0])


@pytest.mark.parametrize("columns", [60, 120])
@pytest.mark.parametrize("arguments", [("metrics", "temperature"), ("once", *REPLAY)])
def test_output_fits_a_terminal(arguments: tuple[str, ...], columns: int) -> None:
    """Lines are wrapped on a terminal, and unchanged in a pipe."""
    leader, follower = os.openpty()
    env = {**os.environ, "COLUMNS": str(columns)}
    process = subprocess.Popen(command(*arguments), stdout=follower, stderr=follower, env=env)
    os.close(follower)
    shown = b""
    try:
        while part := os.read(leader, 65536):
            shown += part
    except OSError:  # how Linux reports the end of a terminal
        pass
    os.close(leader)
    assert process.wait(LIMIT) == 0
    lines = shown.decode().splitlines()
    assert len(lines) > 10
    assert max(map(len, lines)) <= columns
    assert "°C" in shown.decode() or "celsius" in shown.decode()
    piped = run(*arguments).stdout
    assert piped.splitlines()[0].split()[0] in ("METRIC", "#")


def test_a_filter_that_matches_nothing() -> None:
    ended = run("metrics", "no-such-metric")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "no metric has 'no-such-metric'" in ended.stderr


def test_generate_without_the_modules_of_developers(tmp_path: Path) -> None:
    """Dashboards come late among the files: none is written before the error."""
    code = (
        "import sys, importlib.util as util\nfind = util.find_spec\n"
        "util.find_spec = lambda name, *more: None if name == 'grafanalib' else find(name, *more)\n"
        f"sys.argv = ['content', '--root', {str(tmp_path)!r}]\n"
        "from content.__main__ import generate\ngenerate()\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT)
    assert ended.returncode == 2
    assert ended.stderr.startswith("rendering dashboards needs the module grafanalib: run `pip")
    assert not list(tmp_path.iterdir())
