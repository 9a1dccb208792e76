"""What the diagnosis means for profiles, and what a request for a profile may say."""

from __future__ import annotations

import pytest

from gpu_exporter.app.profiles import asked, findings
from gpu_exporter.catalogue.failure_modes import profiles
from gpu_exporter.model.profile_reason import ProfileReason
from gpu_exporter.profiling.triggers import Asked
from tests.unit.diagnosis.test_current import GPUS, snapshots, watched


def test_two_ranks_of_slurm_that_hang() -> None:
    """Both are a reason to profile, and the one whose GPU is idle is waited for."""
    taken = snapshots([profiles.HANGING, profiles.ABSENT], "4711", slurm=True)
    waits, missing = (findings(watched(taken).current)[gpu.uuid] for gpu in GPUS[:2])
    assert (waits.job, waits.owners, waits.is_waited_for) == ("4711", frozenset({"4711"}), False)
    assert (missing.job, missing.owners, missing.is_waited_for) == ("4711", frozenset({"4711"}), True)
    assert waits.findings[ProfileReason.STALL] == "GpuCollectiveStall"


def test_the_owners_of_a_gpu() -> None:
    """A pod is named with its namespace, and by its workload."""
    found = findings(watched(snapshots([profiles.GEMM])).current)[GPUS[0].uuid]
    assert (found.job, found.owners) == ("", frozenset({"ml/train-0", "train"}))


def test_what_a_request_says() -> None:
    assert asked({}, "mia") == Asked("mia")
    one = asked({"gpu": ["3"], "pid": ["7", "8"], "pod": ["ml/a"], "job": ["4711"], "seconds": ["1s"]}, "mia")
    assert one == Asked("mia", 3, (7, 8), ("ml/a", "4711"), 1.0)
    traced = asked({"trace": ["true"], "frames": ["false"], "output": ["text", "report"]}, "mia")
    assert traced == Asked("mia", seconds=0.5, trace=True, frames=False, outputs=("text", "report"))
    assert asked({"seconds": ["500ms"]}, "mia").seconds == 1.0  # py-spy samples for whole seconds


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("gpu", "-1", "'-1' is no whole number from 0 to 1023"),
        ("pid", "99999999999999999999", "is no whole number from 1 to"),
        ("seconds", "6s", "seconds: at most 5"),
        ("url", "http://x", "url: is none of "),
        ("trace", "maybe", "trace: .maybe. is neither true nor false"),
        ("frames", "", "frames: .* is neither true nor false"),
    ],
)
def test_a_faulty_request(name: str, text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        asked({name: [text]}, "mia")


@pytest.mark.parametrize(("name", "most"), [("gpu", 1), ("pid", 16), ("output", 16)])
def test_too_many_of_an_argument(name: str, most: int) -> None:
    """None of them is ignored."""
    with pytest.raises(ValueError, match=f"{name}: at most {most}, not {most + 1}"):
        asked({name: ["1"] * (most + 1)}, "mia")


def test_an_unknown_output() -> None:
    with pytest.raises(ValueError, match="output: device is none of"):
        asked({"trace": ["true"], "output": ["device"]}, "mia")
