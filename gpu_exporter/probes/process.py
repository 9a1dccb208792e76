"""A child process that holds the context of a GPU. Its parent never waits for it longer than until a deadline."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

Answer = Mapping[str, Any]
# How often `tick` is called while an answer is awaited, and how long a child that was killed may take to end.
TICK_SECONDS, END_SECONDS = 0.1, 1.0
MOST_ANSWER_BYTES = 1 << 20


class Child:
    """A process of `probes.child`. After it has failed to answer in time, it is killed and answers every request so."""

    def __init__(self) -> None:
        path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path if entry)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "gpu_exporter.probes.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
        )
        self._buffer = b""
        self._failed: Answer | None = None

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def usable(self) -> bool:
        """Whether it still answers."""
        return self._failed is None

    def ask(self, request: Mapping[str, Any]) -> None:
        """Send a request, of which `answer` returns the answer."""
        if self._failed is None and self._process.stdin:
            with contextlib.suppress(BrokenPipeError):  # `answer` says how it has ended
                os.write(self._process.stdin.fileno(), json.dumps(request).encode() + b"\n")

    def answer(self, end: float, tick: Callable[[], None]) -> Answer:
        """Return the answer by the time `end` (monotonic seconds), or one with `error`; `hung` if none came."""
        while self._failed is None and b"\n" not in self._buffer:
            left = end - time.monotonic()
            if left <= 0:
                return self._fail({"error": "no answer by the deadline", "hung": True})
            if not self._read(min(left, TICK_SECONDS)):
                return self._fail({"error": self._how_ended(end), "crashed": True})
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

    def _how_ended(self, end: float) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._process.wait(max(0.0, min(END_SECONDS, end - time.monotonic())))
            return f"the process of the check was ended by signal {-code}" if code < 0 else f"exit code {code}"
        return "the process of the check closed its output"

    def _fail(self, answer: Answer) -> Answer:
        self._failed = answer
        self._process.kill()
        return answer

    def finish(self) -> None:
        """Ask it to end. Returns at once."""
        for pipe in filter(None, (self._process.stdin, self._process.stdout)):
            with contextlib.suppress(OSError):
                pipe.close()

    def close(self, end: float) -> bool:
        """End it, by the time `end`. Returns False if it is stuck in the driver, which no signal can end."""
        self.finish()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, end - time.monotonic()))
            return True
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_SECONDS)
            return True
        return False
