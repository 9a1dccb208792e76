"""A child process that holds the context of a GPU. Its parent never waits for it longer than until a deadline."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Answer = Mapping[str, Any]
# How often `tick` is called while an answer is awaited, and how long a child that was killed may take to end.
TICK_SECONDS, END_SECONDS = 0.1, 1.0
# An answer that is so late is taken for a GPU that hangs. A shorter time limit says nothing about the GPU.
HANG_SECONDS = 5.0
# Signals that come from outside, such as from the kernel that needs memory, and not from a failure of the driver.
FROM_OUTSIDE = {signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
MOST_ANSWER_BYTES = 1 << 20


class Child:
    """A process of `child.py`. After it has failed to answer in time, it is killed and answers every request so."""

    def __init__(self) -> None:
        path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path if entry)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "gpu_exporter.active_checks.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
        )
        self._buffer = b""
        self._failed: Answer | None = None
        self._hangs_at = 0.0

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def usable(self) -> bool:
        """Whether it still answers."""
        return self._failed is None

    def ask(self, request: Mapping[str, Any]) -> None:
        """Send a request, of which `answer` returns the answer. It may take `seconds` of the request by design."""
        self._hangs_at = time.monotonic() + request.get("seconds", 0.0) + HANG_SECONDS
        if self._failed is None and self._process.stdin:
            with contextlib.suppress(BrokenPipeError):  # `answer` says how it has ended
                os.write(self._process.stdin.fileno(), json.dumps(request).encode() + b"\n")

    def answer(self, end: float, tick: Callable[[], None]) -> Answer:
        """Return the answer by the time `end` (monotonic seconds), or one with `error`.

        Then `hung` says that it took longer than a GPU that works needs, and `crashed` that the driver ended the
        process. An answer that has come meanwhile counts, also if `end` is over.
        """
        while self._failed is None and b"\n" not in self._buffer:
            left = end - time.monotonic()
            if not self._read(max(0.0, min(left, TICK_SECONDS))):
                return self._fail(self._how_ended(end))
            if left <= 0 and b"\n" not in self._buffer:
                hung = time.monotonic() >= self._hangs_at
                fix = "" if hung else ": use a longer --timeout"
                return self._fail({"error": f"no answer by the deadline{fix}", "hung": hung})
            tick()
        if self._failed is not None:
            return self._failed
        line, _, self._buffer = self._buffer.partition(b"\n")
        answer: Answer = json.loads(line)
        if answer.get("lost"):
            self._fail(answer)
        return answer

    def _read(self, seconds: float) -> bool:
        """Wait for some of the answer. Returns False at its end."""
        assert self._process.stdout
        if not select.select([self._process.stdout], [], [], seconds)[0]:
            return True
        content = os.read(self._process.stdout.fileno(), 1 << 16)
        self._buffer += content
        return bool(content) and len(self._buffer) < MOST_ANSWER_BYTES

    def _how_ended(self, end: float) -> Answer:
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._process.wait(max(0.0, min(END_SECONDS, end - time.monotonic())))
            if code >= 0:
                return {"error": f"the process of the check ended with exit code {code}"}
            error = f"the process of the check was ended by signal {-code}"
            return {"error": error, "crashed": -code not in FROM_OUTSIDE}
        return {"error": "the process of the check closed its output", "crashed": True}

    def _fail(self, answer: Answer) -> Answer:
        self._failed = answer
        self._process.kill()
        return answer

    def finish(self) -> None:
        """Ask it to end. Returns at once."""
        for pipe in filter(None, (self._process.stdin, self._process.stdout)):
            with contextlib.suppress(OSError):
                pipe.close()

    def ended(self, end: float) -> bool:
        """Wait until it has ended, by the time `end`. Returns False if it has not."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, end - time.monotonic()))
            return True
        return False

    def kill(self) -> None:
        """Kill it. Returns at once."""
        self._process.kill()


def end_all(children: Sequence[Child], end: float) -> list[Child]:
    """End processes by the time `end`, and kill those that have not ended by then.

    Returns those that are stuck in the driver, which no signal can end, `END_SECONDS` later.
    """
    for child in children:
        child.finish()
    late = [child for child in children if not child.ended(end)]
    for child in late:
        child.kill()
    end = time.monotonic() + END_SECONDS
    return [child for child in late if not child.ended(end)]
