"""Connections to a host engine that hangs, and answers that devices share. No DCGM is needed."""

from __future__ import annotations

import threading
import time

import pytest

from gpu_exporter.io.user_text import Hostengine
from gpu_exporter.model.errors import SourceLost
from gpu_exporter.model.metric import Pace
from gpu_exporter.sources.dcgm import source as source_module
from gpu_exporter.sources.dcgm.source import DcgmSource
from tests.support.tools import until


class FakeBindings:
    """A host engine whose calls wait for a gate. `connected` are its open connections."""

    def __init__(self) -> None:
        self.connected: list[int] = []
        self.gate = threading.Event()
        self.gate.set()
        self._connects = 0

    def connect(self, to: Hostengine, timeout: float) -> int:
        self.gate.wait()
        self._connects += 1
        self.connected.append(self._connects)
        return self._connects

    def disconnect(self, handle: int, to: Hostengine) -> None:
        self.connected.remove(handle)

    def hang(self, handle: int) -> None:
        self.gate.wait()


@pytest.fixture
def bindings(monkeypatch: pytest.MonkeyPatch) -> FakeBindings:
    bindings = FakeBindings()
    monkeypatch.setattr(source_module, "load", lambda folder: bindings)
    return bindings


@pytest.mark.parametrize("closed", [True, False])
def test_connection_that_hung_is_closed_later(bindings: FakeBindings, closed: bool) -> None:
    """Nothing can be closed while a call is stuck, so the next connect closes it."""
    source = DcgmSource(Hostengine("host:5555"))
    source.open()
    session = source._open_session()
    bindings.gate.clear()
    with pytest.raises(SourceLost, match="does not answer"):
        source._call(session, lambda: session.connection.call(bindings.hang), 0.05)
    if closed:
        source.close()
    else:
        with pytest.raises(SourceLost, match="does not answer"):
            source.open()
    bindings.gate.set()
    until(lambda: not source._caller.stuck, 10, "a call that returns")
    source.open()

    assert bindings.connected == [2]
    source.close()
    assert bindings.connected == []


def test_connection_that_comes_too_late_is_closed(bindings: FakeBindings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "CONNECT_SECONDS", 0.05)
    source = DcgmSource(Hostengine("host:5555"))
    bindings.gate.clear()
    with pytest.raises(SourceLost, match="does not answer"):
        source.open()
    bindings.gate.set()
    until(lambda: not source._caller.stuck, 10, "a connect that returns")

    assert bindings.connected == []


@pytest.mark.parametrize(
    ("age", "read"),
    [(1.0, []), (8.0, [Pace.SLOW]), (20.0, [Pace.SLOW]), (31.0, [Pace.SLOW, Pace.RARE])],
)
def test_devices_share_answers_until_the_host_engine_samples_again(
    bindings: FakeBindings, monkeypatch: pytest.MonkeyPatch, age: float, read: list[Pace]
) -> None:
    """A read covers all GPUs, and each of eight GPUs is due at another time."""
    source = DcgmSource(Hostengine("host:5555"))
    source.open()
    session = source._open_session()
    paces: list[Pace] = []
    monkeypatch.setattr(session, "read", paces.extend)
    session.table.read_at.update(dict.fromkeys(Pace, time.monotonic() - age))
    source.read(session, frozenset({Pace.SLOW, Pace.RARE, Pace.STATIC}), 0.0)
    source.close()

    assert sorted(paces, key=lambda pace: pace.value) == read
