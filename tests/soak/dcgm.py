"""A host engine that hangs for longer than a minute, is killed and loses a GPU, under a running exporter.

    python -m tests.soak.dcgm [--hang 90]

Calls into DCGM's library hang for 60 s then, as the real ones do. Meanwhile each scrape must succeed, and no counter
may fall. CI does the same with a hang of seconds (`tests/e2e/sources/test_dcgm.py`).
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.conftest import Exporter, command, free_port
from tests.e2e.pipeline.test_faults import Watched, states
from tests.e2e.sources.test_dcgm import down, profiled, recovers, scraped, totals
from tests.support.fakes.hostengine import FakeHostengine


def soak(exporter: Watched, engine: FakeHostengine, hang: float) -> None:
    """Cause every failure once, and wait for the recovery."""
    before = totals(exporter.until(profiled))
    with scraped(exporter):
        begin = time.monotonic()
        engine.signal(signal.SIGSTOP)
        exporter.until(down("stalled"))
        print(f"hangs: withdrawn after {time.monotonic() - begin:.1f} s")
        while time.monotonic() < begin + hang:
            assert down("stalled")(exporter.page())
            time.sleep(1)
        engine.signal(signal.SIGCONT)
        begin = time.monotonic()
        recovers(exporter, before)
        print(f"goes on: back after {time.monotonic() - begin:.1f} s")
    for round_ in range(5):
        before = totals(exporter.page())
        with scraped(exporter):
            engine.kill()
            exporter.until(down("no_connection"))
            engine.start()
            recovers(exporter, before)
            engine.remove(1)
            exporter.until(lambda page: states(page)[1] != "up", 15)
            engine.restore(1)
            recovers(exporter, before)
        print(f"killed, started, a GPU removed and returned: {round_ + 1}")


def main() -> int:
    """Run and print the result."""
    options = argparse.ArgumentParser()
    options.add_argument("--hang", type=float, default=90)
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        engine, port = FakeHostengine(Path(folder) / "engine", gpus=2), free_port()
        engine.start()
        arguments = ("--address", f"127.0.0.1:{port}", "--interval", "200ms", "--kernel-log", "none", *engine.flags)
        environment = {**os.environ, **engine.environment, "STANDIN_DCGM_TIMEOUT": "60"}
        log = Path(folder) / "log"
        with log.open("w") as errors:
            process = subprocess.Popen(command("serve", *arguments), env=environment, text=True, stderr=errors)
            try:
                time.sleep(2)
                exporter = Watched(Exporter(process, port, log))
                soak(exporter, engine, chosen.hang)
                threads = len(list(Path(f"/proc/{process.pid}/task").iterdir()))
                begin = time.monotonic()
                code, took = exporter.stop(), time.monotonic() - begin
            finally:
                engine.kill()
                process.kill()
                process.wait()
        print(f"ended with {code} after {took:.1f} s, {threads} threads")
        assert "Traceback" not in log.read_text()
    return 0 if code == 0 and took < 4 and threads < 30 else 1


if __name__ == "__main__":
    sys.exit(main())
