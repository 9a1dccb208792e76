"""Ctrl-C and SIGTERM end a command that waits for something that hangs: with one line, and its documented exit code."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path

import pytest

from tests.conftest import command
from tests.support.fakes.driver import FakeDriver
from tests.support.tools import LIMIT, until

SIGNALS = (signal.SIGINT, signal.SIGTERM)
INCOMPLETE = "gpu-exporter: interrupted before the diagnosis was complete"


class Silent:
    """A server that accepts a connection and never answers."""

    def __init__(self, listening: socket.socket) -> None:
        self.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        self.connections: list[socket.socket] = []
        self._listening = listening

    def accept(self, pid: int) -> None:
        """Wait for a connection, and keep it open."""
        self.connections.append(self._listening.accept()[0])


@pytest.fixture
def silent() -> Iterator[Silent]:
    """A server that accepts a connection and never answers."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        listening.settimeout(LIMIT)
        server = Silent(listening)
        yield server
    for connection in server.connections:
        connection.close()


def interrupted(
    number: signal.Signals, busy: Callable[[int], object], *arguments: str, env: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """Send the signal once `busy` returns for the process. Return exit code and stderr."""
    process = subprocess.Popen(
        # A shell lets its background jobs ignore Ctrl-C, and the tests may be one. With threads, `preexec_fn` can hang
        # between fork and exec.
        ["env", "--default-signal=INT", *command(*arguments)],
        env={**os.environ, **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            busy(process.pid)
            process.send_signal(number)
            _, said = process.communicate(timeout=LIMIT)
            return process.returncode, said.strip()
        finally:
            process.kill()


@pytest.mark.parametrize("number", SIGNALS)
def test_diagnose_while_a_server_does_not_answer(silent: Silent, number: signal.Signals) -> None:
    """The request would take 15 s to time out, and a query of a Prometheus a minute."""
    code, said = interrupted(number, silent.accept, "diagnose", "--url", silent.url)
    assert (code, said) == (2, INCOMPLETE)


def test_release_while_the_exporter_does_not_answer(silent: Silent) -> None:
    """As every other command: 128 and the number of the signal."""
    code, said = interrupted(signal.SIGINT, silent.accept, "release", "--url", silent.url)
    assert (code, said) == (130, "gpu-exporter: interrupted")


def has_open(pid: int, file: Path) -> bool:
    """Return whether the process has this file open."""
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            if link.readlink() == file:
                return True
    return False


@pytest.mark.parametrize(("name", "exit_code"), [("once", 130), ("check", 130), ("doctor", 130), ("diagnose", 2)])
def test_commands_while_the_driver_hangs(driver: FakeDriver, tmp_path: Path, name: str, exit_code: int) -> None:
    """No destructor waits for the stuck call."""
    file = tmp_path / "nvidiactl"
    file.touch()
    driver.set("DeviceFile", str(file))
    driver.block(0)

    code, said = interrupted(
        signal.SIGINT, lambda pid: until(lambda: has_open(pid, file)), name, env=driver.environment
    )
    assert code == exit_code
    assert said.splitlines()[-1].startswith("gpu-exporter: interrupted" if code == 130 else "gpu-exporter: ")
