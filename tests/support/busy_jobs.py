"""Real Python processes whose hot lines are known: `line` comments name them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

PROGRAMS: Mapping[str, str] = {
    "busy": """
        def train_step():
            total = 0
            while True:
                total += sum(range(1000))  # HOT
    """,
    "loader": """
        import time
        def load_batch():
            time.sleep(0.5)  # HOT
        def train_step():
            while True:
                load_batch()
    """,
    "waits": """
        import time
        def train_step():
            while True:
                time.sleep(0.5)  # HOT
    """,
    "queue": """
        import queue
        def train_step():
            queue.Queue().get()  # HOT
    """,
    "files": """
        import os
        def save_checkpoint(path):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
            while True:
                os.pwrite(descriptor, bytes(1 << 22), 0)  # HOT
        def train_step():
            save_checkpoint(__file__ + ".data")
    """,
    "workers": """
        import multiprocessing
        context = multiprocessing.get_context("fork")
        queue, all_run = context.Queue(1 << 20), context.Barrier(3)
        def decode():
            all_run.wait()
            while True:
                sum(range(100_000))  # HOT
                queue.put(1)
        def train_step():
            while True:
                queue.get()
        for _ in range(2):
            context.Process(target=decode, daemon=True).start()
        all_run.wait()
    """,
    "thread": """
        import threading, time
        def waits_for_ever():
            threading.Event().wait()
        def watches():
            while True:
                time.sleep(0.2)  # HOT
        def train_step():
            threading.Thread(target=waits_for_ever, name="waiter", daemon=True).start()
            threading.Thread(target=watches, name="watcher", daemon=True).start()
            while True:
                time.sleep(0.3)
    """,
}


def hot_line(text: str) -> int:
    """Return the number of the line with the comment `HOT`."""
    return next(number for number, line in enumerate(text.splitlines(), 1) if line.endswith("# HOT"))


@contextmanager
def busy_job(name: str, folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start a program, and return it and its hot line as `path(line)`."""
    path = folder / f"job_{name}.py"
    text = textwrap.dedent(PROGRAMS[name]).lstrip() + "print('ready', flush=True)\ntrain_step()\n"
    path.write_text(text)
    job = subprocess.Popen([sys.executable, str(path)], stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert job.stdout
        assert job.stdout.readline() == "ready\n"
        yield job, f"{path}({hot_line(text)})"
    finally:
        os.killpg(job.pid, signal.SIGKILL)  # its children, too
        job.communicate()
