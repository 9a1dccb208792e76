"""The audit line of a profile: profiles show the code of others."""

from __future__ import annotations

import logging
import logging.handlers
import os
from collections.abc import Sequence
from pathlib import Path

from gpu_exporter.profiling.processes import Process

SYSLOG = Path("/dev/log")


def audit_line(method: str, processes: Sequence[Process], seconds: float, by: int, reason: str = "") -> str:
    """Return one line: who profiled which processes of which users on which GPUs, how, for how long and why."""
    pids = ",".join(str(process.pid) for process in processes)
    uids = ",".join(str(uid) for uid in sorted({process.uid for process in processes}))
    gpus = ",".join(str(gpu) for gpu in sorted({gpu for process in processes for gpu in process.gpus}))
    why = f" reason={reason}" if reason else ""
    return f"profile method={method} seconds={seconds:g} pids={pids} uids={uids} gpus={gpus or '-'} by_uid={by}{why}"


def record(line: str) -> None:
    """Send a line to the system's log, if there is one."""
    log = logging.getLogger("gpu_exporter.audit")
    log.propagate = False
    log.setLevel(logging.INFO)
    if not SYSLOG.exists():
        return
    try:
        handler = logging.handlers.SysLogHandler(str(SYSLOG), logging.handlers.SysLogHandler.LOG_AUTHPRIV)
    except OSError:  # nobody listens
        return
    handler.ident = f"gpu-exporter[{os.getpid()}]: "
    log.addHandler(handler)
    log.info(line)
    log.removeHandler(handler)
    handler.close()
