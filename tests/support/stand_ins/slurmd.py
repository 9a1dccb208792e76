"""Stands for slurmd and scontrol: it runs prolog and epilog of a job on this node, as slurm.conf(5) describes.

A script gets a small environment without a login, and ends within PrologEpilogTimeout. A prolog that fails drains the
node and requeues the job; an epilog that fails drains the node.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

TIMEOUT_SECONDS = 120.0
_SCONTROL = '#!/bin/sh\n[ "$1" = update ] || exit 1\nshift\nprintf "%s\\n" "$*" >> {calls}\n'


class Slurmd:
    """A node. `reason` is why it is drained, empty if it is not."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._bin, self._calls = folder / "bin", folder / "scontrol.txt"
        self._bin.mkdir(parents=True)
        self._environment = {key: value for key, value in environment.items() if key != "PATH"}
        self.program("scontrol", _SCONTROL.format(calls=self._calls))
        self.program("logger", f"#!/bin/sh\ncat >> {folder / 'syslog.txt'}\n")
        self._failed = ""

    def program(self, name: str, text: str) -> None:
        """Install a program in the PATH of scripts."""
        (self._bin / name).write_text(text)
        (self._bin / name).chmod(0o755)

    def set(self, name: str, value: str) -> None:
        """Set an environment variable of scripts."""
        self._environment[name] = value

    def run(self, script: Path, gpus: str, visible: str = "") -> bool:
        """Run the prolog or epilog of a job with these GPUs, by minor number. Returns whether it succeeded.

        `visible` is CUDA_VISIBLE_DEVICES: since Slurm 25.11 UUIDs, before that numbers.
        """
        environment = {**self._environment, "PATH": f"{self._bin}:/usr/bin:/bin", "SLURMD_NODENAME": "gpu-7"}
        if gpus:
            environment["SLURM_JOB_GPUS"] = gpus
            environment["CUDA_VISIBLE_DEVICES"] = visible or gpus
        ended = subprocess.run(
            [str(script)],
            env=environment,
            cwd="/",
            capture_output=True,
            timeout=TIMEOUT_SECONDS,
            start_new_session=True,
        )
        if ended.returncode and not self.reason:
            self._failed = f"{script.stem} failed"
        return ended.returncode == 0

    @property
    def reason(self) -> str:
        """Why the node is drained, as scontrol was told, or as slurmd says itself."""
        if not self._calls.exists():
            return self._failed
        last = self._calls.read_text().splitlines()[-1]
        assert last.startswith("NodeName=gpu-7 State=DRAIN Reason="), last
        return last.partition("Reason=")[2]


def with_package(root: Path) -> str:
    """Return a script that runs gpu-exporter of this checkout."""
    return (
        f'#!/bin/sh\nexport PYTHONPATH="{root}{os.pathsep}$PYTHONPATH"\nexec "{sys.executable}" -m gpu_exporter "$@"\n'
    )
