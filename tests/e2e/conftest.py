"""Fixtures: a kubelet, and a node with GPUs of both kinds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.support.fakes.driver import FakeDriver
from tests.support.fakes.kubelet import FakeKubelet
from tests.support.owners import MIG


@pytest.fixture
def kubelet() -> Iterator[FakeKubelet]:
    """A running kubelet, with a path that is short enough for a socket."""
    with TemporaryDirectory() as directory:
        kubelet = FakeKubelet(Path(directory) / "pod-resources/kubelet.sock")
        kubelet.start()
        yield kubelet
        kubelet.stop()


@pytest.fixture
def node(tmp_path: Path) -> FakeDriver:
    """A node of three GPUs, the last of which is in MIG mode."""
    driver = FakeDriver(tmp_path / "driver", gpus=3)
    driver.partition(2, dict(enumerate(MIG)))
    return driver
