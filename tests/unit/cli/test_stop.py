"""A signal ends waiting commands, whenever it arrives."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.support.tools import LIMIT

pytestmark = pytest.mark.slow

WAITS = """
from gpu_exporter.cli.stop import stop_event

stop = stop_event()
print("waiting", flush=True)
while not stop.wait(0):  # nearly always amid a wait
    pass
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_during_a_wait(number: signal.Signals) -> None:
    """If the handler itself set the event, every other run would deadlock."""
    for _ in range(8):
        with subprocess.Popen([sys.executable, "-c", WAITS], stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout
                process.stdout.readline()
                process.send_signal(number)
                assert process.wait(LIMIT) == 0
            finally:
                process.kill()
