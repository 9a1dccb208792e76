"""The exporter starts where its address space is limited: threads do not reserve more than they need."""

from __future__ import annotations

import subprocess
from http.client import HTTPConnection
from pathlib import Path

import pytest

from tests.conftest import command
from tests.support.tools import LIMIT, free_port, until


@pytest.mark.parametrize("mebibytes", [200, 250, 300])
def test_it_starts(tmp_path: Path, mebibytes: int) -> None:
    """Each thread's own arena would take 64 MiB of it, and each default stack 8 MiB."""
    port, log = free_port(), tmp_path / "log"
    arguments = command("serve", "--source", "simulated", "--address", f"127.0.0.1:{port}")
    limited = ["sh", "-c", f'ulimit -v {mebibytes << 10} && exec "$@"', "sh", *arguments]

    def answers() -> bool:
        assert process.poll() is None, log.read_text()
        connection = HTTPConnection("127.0.0.1", port, timeout=LIMIT)
        try:
            connection.request("GET", "/healthz")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    with log.open("w") as file, subprocess.Popen(limited, stderr=file) as process:
        try:
            until(answers, what="an answer")
        finally:
            process.kill()
