"""The thread that follows the kernel log: which reads may hang, and have a thread beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_exporter.catalogue.xids import load
from gpu_exporter.events.event_log import EventLog
from gpu_exporter.events.kernel_log_thread import KernelWatch


@pytest.mark.parametrize("is_device", [True, False])
def test_only_a_file_is_read_with_a_deadline(is_device: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening anything may hang, and so may a disk; a device that is open has a record or none."""
    file = tmp_path / "kern.log"
    file.touch()
    watch, calls = KernelWatch(EventLog(load(), lambda _: None), Path("/dev/null") if is_device else file, None), 0
    call = watch._file.call

    def counted(*arguments: object) -> None:
        nonlocal calls
        calls += 1
        call(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(watch._file, "call", counted)
    for _ in range(3):
        watch.poll()

    assert calls == (1 if is_device else 3)
    watch.reason = "late"
    watch.poll()
    assert calls == (2 if is_device else 4)
