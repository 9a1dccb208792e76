"""Every call of the CUDA driver fails once: the check says which, and leaves no context."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_exporter.active_checks.cuda import PROTOTYPES
from gpu_exporter.active_checks.run import CheckTarget, Outcomes, run
from tests.support.fakes.cuda import FakeCuda

# CUDA_ERROR_UNKNOWN
UNKNOWN = 999
OF_LINKS = {"cuCtxEnablePeerAccess", "cuDeviceCanAccessPeer", "cuMemcpyPeerAsync"}
# What ends the context is called when all is measured, and the process ends anyway. The name of an error is no GPU's.
HARMLESS = {"cuDevicePrimaryCtxRelease_v2", "cuGetErrorName"}


def checked(cuda: FakeCuda, gpus: int, monkeypatch: pytest.MonkeyPatch) -> Outcomes:
    """Return the results of these GPUs, of which no context is left."""
    for name, value in cuda.environment({"LD_LIBRARY_PATH": ""}).items():
        monkeypatch.setenv(name, value)
    targets = [CheckTarget(index, f"GPU-{index}", f"00000000:{6 + index:02X}:00.0", "H200") for index in range(gpus)]
    outcomes = run(targets, 2, 60.0, 0.01, tick=lambda working: None, slow=lambda outcomes: ((), ()))
    assert (cuda.contexts(), outcomes.stuck) == ([], [])
    return outcomes


def test_every_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first failure is reported, not what follows from it."""
    for call in sorted({*PROTOTYPES} - OF_LINKS):
        cuda = FakeCuda(tmp_path / call)
        cuda.set("FreeMiB", 8)
        cuda.set(f"Fail.{call}", UNKNOWN)
        (outcome,) = checked(cuda, 1, monkeypatch).gpus
        if call in HARMLESS:
            assert outcome.failed is None, call
        else:
            assert outcome.failed is not None, call
            assert outcome.failed[1] == {"error": f"{call}: CUDA_ERROR_UNKNOWN", "lost": True}


@pytest.mark.parametrize("call", sorted(OF_LINKS))
def test_calls_of_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """The pair is named, and each GPU is measured nevertheless."""
    cuda = FakeCuda(tmp_path, gpus=2)
    cuda.set(f"Fail.{call}", UNKNOWN, gpu=1)
    outcomes = checked(cuda, 2, monkeypatch)
    assert outcomes.pairs[1, 0] == {"error": f"{call}: CUDA_ERROR_UNKNOWN", "lost": True}
    assert [outcome.failed for outcome in outcomes.gpus] == [None, None]


@pytest.mark.parametrize("call", ["cuDeviceGet", "cuDeviceGetPCIBusId"])
def test_a_gpu_that_cannot_be_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """It does not keep the others from being checked."""
    cuda = FakeCuda(tmp_path, gpus=2)
    cuda.set(f"Fail.{call}", UNKNOWN, gpu=0)
    one, other = checked(cuda, 2, monkeypatch).gpus
    assert one.failed == ("open", {"error": f"{call}: CUDA_ERROR_UNKNOWN", "lost": True})
    assert other.failed is None
