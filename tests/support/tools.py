"""Tools for all tests: programs from outside Python, and waiting for a condition."""

from __future__ import annotations

import os
import random
import shutil
import socket
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from tests import ROOT

T = TypeVar("T")
# Time limits only bound failures, and other processes may use the cores: limits are this many times those of an idle
# machine.
PATIENCE = 10.0
# The limit, in seconds, of what takes a moment on an idle machine.
LIMIT = 20 * PATIENCE
# Set in the environment by `pytest --long`.
LONG = "LONG_TESTS"
BUNDLED = ROOT / ".tools" / "usr" / "bin"
# Newer versions of Prometheus and VictoriaMetrics.
NEWER = ROOT / ".tools" / "newer" / "usr" / "bin"


def tool(name: str) -> Path:
    """Return the program that `make tools` unpacked, or else one from PATH, which may be incomplete."""
    found = shutil.which(name, path=str(BUNDLED)) or shutil.which(name)
    assert found, f"{name} is neither in {BUNDLED} nor in PATH: fix: run `make tools`"
    return Path(found)


def free_port() -> int:
    """Return a TCP port that nobody uses now, below those that the system gives to outgoing connections."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def is_long() -> bool:
    """Return whether the long variants of tests run."""
    return LONG in os.environ


def settled(wrong: Callable[[], Collection[str]], timeout: float, every: float = 1.0) -> None:
    """Wait until nothing is wrong; after `timeout` seconds of an idle machine, fail with what still is.

    For what a late scrape disturbs for a moment: on a busy machine, a single look may come just then.
    """
    end = time.monotonic() + PATIENCE * timeout
    while complaints := wrong():
        assert time.monotonic() < end, "\n".join(sorted(complaints))
        time.sleep(every)


def until(ask: Callable[[], T], timeout: float = 15.0, what: str = "the condition", every: float = 0.1) -> T:
    """Wait until an answer is true and return it; fail after `timeout` seconds of an idle machine."""
    patience = PATIENCE * timeout
    end = time.monotonic() + patience
    while not (answer := ask()):
        assert time.monotonic() < end, f"{what} never came true in {patience:g} s; the last answer is {answer!r}"
        time.sleep(every)
    return answer
