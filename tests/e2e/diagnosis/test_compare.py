"""`gpu-exporter compare`, from the command line."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from tests.conftest import RECORDINGS, run
from tests.support.fakes.driver import FakeDriver

REPLAY = ("--recording", "h200_x2_ddp")


def test_a_recording_is_the_same_as_itself(tmp_path: Path) -> None:
    """Exit code 0, and every metric of both GPUs is equal.

    Both play one phase slowly: on a busy machine one of them starts later, and must not be in another phase.
    """
    recording = tmp_path / "balanced.jsonl"
    with gzip.open(RECORDINGS / "h200_x2_ddp.jsonl.gz", "rt") as lines:
        header, *ticks = (line for line in lines if '"format"' in line or '"phase":"ddp_balanced"' in line)
    recording.write_text("".join((header, *ticks[len(ticks) // 2 :])))  # without the start of the job
    played = ("--recording", str(recording), "--speed", "0.02")
    result = run("compare", "--a", "replay", "--b", "replay", *played, "--seconds", "4")
    table = result.stdout.splitlines()

    assert result.returncode == 0, result.stderr + result.stdout
    assert table[0] == "a: replay, b: replay; 2 GPUs in both, 4 s"
    assert table[-1].endswith(" the same, 0 only in a, 0 only in b, 0 differ")
    assert sum("DCGM_FI_PROF_SM_ACTIVE" in line for line in table) == 2


def test_two_recordings_differ() -> None:
    """Exit code 3, and the JSON output says where."""
    others = ("--a", "replay:h200_x2_ddp", "--b", "replay:h200_workloads")
    result = run("compare", *others, "--speed", "0.001", "--seconds", "2", "--json")
    found = json.loads(result.stdout)

    assert result.returncode == 3, result.stderr
    assert not found["same"]
    assert found["identities"] or [each for each in found["metrics"] if each["verdict"] == "differs"]


def test_driver_and_simulation(driver: FakeDriver) -> None:
    """Each ignores settings of the other source; their GPUs are different ones."""
    result = run("compare", "--a", "nvml", "--b", "simulated", "--gpus", "1", "--seconds", "1", env=driver.environment)

    assert result.returncode == 3, result.stderr
    assert "differs: GPU-00000000-0000-0000-0000-000000000000 exists only in a" in result.stdout


def test_bad_sources_are_one_line(driver: FakeDriver) -> None:
    """The error names the bad input."""
    cases = {
        ("--a", "nvml", "--b", "nvml"): "--a nvml --b nvml: a process can open a driver's library only once",
        ("--a", "nvml:x", "--b", "replay"): "nvml:x: only replay has a file after its name",
        ("--a", "replay", "--b", "nvml"): "--source replay needs --recording FILE",
        ("--a", "nmvl", "--b", "replay"): "'nmvl' is not one of",
    }
    for arguments, said in cases.items():
        result = run("compare", *arguments, env=driver.environment)
        assert result.returncode in (1, 2)
        assert said in result.stderr
        assert result.stderr.count("\n") == 1
