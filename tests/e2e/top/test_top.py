"""`gpu-exporter top` in a real pseudo-terminal: sources, states, keys, sizes and terminals without colour."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from tests.conftest import Serve, command, free_port, run
from tests.support.fakes.driver import FakeDriver
from tests.support.terminal import Terminal
from tests.support.tools import LIMIT

Top = Callable[..., Terminal]
SIMULATED = ("--source", "simulated", "--gpus", "4", "--seed", "1")
RESTORED = "\x1b[?1049l"
HOSTILE = "evil\\u001b[2J\\u202e\u200b\x1b]0;owned\x07" + "x" * 400


@pytest.fixture
def top() -> Iterator[Top]:
    """Start `gpu-exporter top` in a terminal of a size."""
    started: list[Terminal] = []

    def start(*arguments: str, size: tuple[int, int] = (80, 24), env: dict[str, str] | None = None) -> Terminal:
        started.append(Terminal(command("top", *arguments), size=size, env=env or {}))
        return started[-1]

    yield start
    for terminal in started:
        terminal.close()


def judged(text: str) -> bool:
    """Whether the first diagnosis is on the screen."""
    return "compute-bound" in text or "communicating" in text


def test_simulated_gpus(top: Top) -> None:
    """The view at several sizes, all keys, and an orderly end."""
    terminal = top(*SIMULATED, "--inject", "GpuStragglerSlow:1")
    # The ranks of a job are compared once they have worked for a whole window.
    text = terminal.until(
        lambda text: "slows down job" in text and text.splitlines()[4].startswith("  GPU FINDING"), 40
    )
    lines = text.splitlines()
    assert "Simulated GPUs" in lines[1]
    assert "slows down job" in lines[2], "the incident"
    assert "also hit" in lines[3], "what does not fit one line has two"
    assert all(name in lines[4] for name in ("GPU", "FINDING", "CLASS", "SM", "OWNER"))
    assert len(lines) == 24
    assert "q quit" in lines[-1]

    terminal.resize(250, 50)
    wide = terminal.until(lambda text: "PROCESS" in text and "GpuStragglerSlow" in text)
    assert max(map(len, wide.splitlines())) <= 250
    terminal.resize(80, 24)
    terminal.until(lambda text: "PROCESS" not in text and "GPU FINDING" in text)

    terminal.press("?")
    terminal.until(lambda text: "show or hide this help" in text and "clear the filter" in text)
    terminal.press("?")
    terminal.until(lambda text: "sort: worst first" in text and text.splitlines()[5].startswith("▶ 1"))
    terminal.press("\r")
    advice = "-> Move the job to another GPU if this one has a health alert."
    terminal.until(lambda text: "GpuStragglerSlow (warning)" in text and advice in text)
    terminal.press("\x1b[B\x1b[B")
    terminal.until(lambda text: "compute-bound (for" not in text)
    terminal.press("\x1b")
    terminal.until(lambda text: "CLASS" in text)
    terminal.press("/compute\r")
    terminal.until(lambda text: "filter: compute" in text and len(re.findall("compute-bound ", text)) <= 2)
    terminal.press("q")
    assert terminal.end() == 0
    assert terminal.screen.raw.endswith(RESTORED)
    assert not terminal.screen.alternate


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_restore_the_terminal(top: Top, number: signal.Signals) -> None:
    terminal = top(*SIMULATED)
    terminal.until(lambda text: "FINDING" in text)
    terminal.signal(number)
    assert terminal.end() == 0
    assert terminal.screen.raw.endswith(RESTORED)


def test_a_stalled_link(top: Top) -> None:
    """The program ends although nobody reads what it writes."""
    terminal = top(*SIMULATED, size=(250, 60))
    terminal.stalled()
    terminal.signal(signal.SIGTERM)
    assert terminal.exit_code() == 0


def test_a_gpu_is_lost(top: Top) -> None:
    terminal = top(*SIMULATED, "--faults", "lost node-000/2 at 0s for 1h")
    terminal.until(lambda text: re.search(r"2 +lost +- ", text))
    terminal.until(lambda text: "GpuLost (critical)" in text and "-> Drain the node" in " ".join(text.split()))


def test_the_exporter_goes_and_comes_back(top: Top, serve: Serve) -> None:
    """The view says so and how old its values are, and goes on when the exporter is back."""
    exporter = serve(*SIMULATED)
    terminal = top("--url", f"http://127.0.0.1:{exporter.port}")
    terminal.until(judged)
    exporter.stop()
    gone = r"nothing listens there.* values are [0-9]+ s old"
    terminal.until(lambda text: re.search(gone, text) and "▶ 0" in text)  # the last values stay
    again = subprocess.Popen(
        command("serve", "--address", f"127.0.0.1:{exporter.port}", *SIMULATED), stderr=subprocess.DEVNULL
    )
    try:
        terminal.until(lambda text: "nothing listens" not in text and judged(text))
    finally:
        again.kill()
        again.wait()


def test_gpus_of_this_machine(top: Top, driver: FakeDriver) -> None:
    """Through NVML: values, processes with their commands, and no banner."""
    programs = [
        subprocess.Popen([sys.executable, "-c", "input()", f"--rank={rank}"], stdin=subprocess.PIPE)
        for rank in range(2)
    ]
    driver.set("ComputeRunningProcesses", ",".join(f"{program.pid}:{5000 << 20}" for program in programs))
    terminal = top("--kernel-log", "none", env=driver.environment)
    text = terminal.until(lambda text: judged(text) and re.search(r"power +█+\S* +[\d.]+ W of 700 W", text))
    assert "Simulated" not in text
    terminal.press("\r")
    terminal.until(
        lambda text: all(re.search(rf"{each.pid} +4.9 Gi .*--rank={n}", text) for n, each in enumerate(programs))
    )
    for program in programs:
        program.communicate()


def test_a_replayed_recording(top: Top) -> None:
    terminal = top("--recording", "h200_x2_ddp")
    assert "Replayed from a recording of real GPUs" in terminal.until(lambda text: "▶ 0" in text)


@pytest.mark.parametrize("name", ["NO_COLOR", "TERM"])
def test_without_colour(top: Top, name: str) -> None:
    """With NO_COLOR only weight and reverse video remain; a dumb terminal gets no codes at all."""
    terminal = top(*SIMULATED, env={name: {"NO_COLOR": "1", "TERM": "dumb"}[name]})
    terminal.until(judged)
    codes = {code for match in re.findall(r"\x1b\[([0-9;]+)m", terminal.screen.raw) for code in match.split(";")}
    if name == "TERM":
        assert "\x1b" not in terminal.screen.raw
        terminal.press("\x03")
        assert terminal.end() == 0
    else:
        assert codes == {"0", "1", "7"}


class _Hostile(BaseHTTPRequestHandler):
    """A page with a GPU whose names try to take over the terminal, and a thousand processes."""

    def do_GET(self) -> None:
        labels = f'gpu="0",UUID="GPU-0",modelName="{HOSTILE}",Hostname="{HOSTILE}"'
        lines = [f"DCGM_FI_PROF_{name}{{{labels}}} 0.9" for name in ("GR_ENGINE_ACTIVE", "SM_ACTIVE")]
        lines.append(f"DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{{{labels}}} 0.5")
        lines.append(f'gpu_pod_info{{gpu="0",UUID="GPU-0",namespace="{HOSTILE}",pod="{HOSTILE}",workload="w"}} 1')
        lines += [
            f'gpu_process_memory_used_bytes{{gpu="0",UUID="GPU-0",pid="{pid}",process="{HOSTILE}"}} {pid}e6'
            for pid in range(1, 1001)
        ]
        body = ("\n".join(lines) + "\n").encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Stay silent."""


def test_hostile_names(top: Top) -> None:
    """No control character of a label reaches the terminal: the screen of the test fails on any."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Hostile) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        terminal = top("--url", f"http://127.0.0.1:{server.server_port}", size=(100, 30))
        terminal.until(lambda text: "compute-bound" in text and "evil" in text)
        terminal.press("\r")
        terminal.until(lambda text: "COMMAND" in text)
        terminal.press("\x1b[F")
        terminal.until(lambda text: re.search(r"^ +1 +977 Ki", text, re.MULTILINE))
        assert "\x1b]0" not in terminal.screen.raw
        assert "\u202e" not in terminal.screen.raw
        terminal.press("q")
        assert terminal.end() == 0
        server.shutdown()


@pytest.mark.parametrize("recording", ["h200_workloads", "h200_x2_ddp"])
def test_once_has_the_classes_of_diagnose(recording: str) -> None:
    table = run("top", "--once", "--recording", recording)
    report = json.loads(run("diagnose", "--recording", recording, "--json").stdout)
    assert table.returncode == 0
    banner, head, *rows = table.stdout.splitlines()
    assert "Replayed from a recording of real GPUs" in banner
    assert head.split()[:3] == ["GPU", "MODEL", "CLASS"]
    found = [(row.split()[0], re.split(r"  +", row)[2]) for row in rows]
    assert found == [(gpu["gpu"], gpu["class"]) for gpu in report["gpus"]]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--url", "http://127.0.0.1:1", "--recording", "h200_workloads"), "exclude each other"),
        (("--once",), "--once needs --recording"),
        (
            ("--once", "--recording", "h200_workloads", "--ca-file", "c"),
            "--ca-file is for a server: name it with --url",
        ),
        (("--for", "1h"), "at most 5m"),
        (SIMULATED, "needs a terminal"),
    ],
)
def test_wrong_usage(arguments: tuple[str, ...], says: str) -> None:
    result = run("top", *arguments)
    assert (result.returncode, len(result.stderr.splitlines())) == (2, 1)
    assert says in result.stderr


def test_an_exporter_that_never_answered(top: Top) -> None:
    """One line after the terminal is restored, and exit code 1."""
    terminal = top("--url", f"http://127.0.0.1:{free_port()}")
    assert terminal.end() == 1
    before, _, after = terminal.screen.raw.rpartition(RESTORED)
    assert before
    assert "nothing listens there" in after


def test_without_rich() -> None:
    """One line that names the command that installs it."""
    program = "import sys; sys.modules['rich'] = None; from gpu_exporter.cli.main import main; main()"
    result = subprocess.run([sys.executable, "-c", program, "top"], capture_output=True, text=True, timeout=LIMIT)
    assert result.returncode == 1
    assert result.stderr == ("gpu-exporter: top needs Rich, which is not installed: pip install rich\n")
