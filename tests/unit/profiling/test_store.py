"""The folder of profiles: what comes back, its bounds, and what happens without disk."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from gpu_exporter.catalogue.causes import TraceCause
from gpu_exporter.io import file_access
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.model.profile_reason import ProfileReason
from gpu_exporter.profiling import records, store
from gpu_exporter.profiling.pyspy import SamplingFailure
from gpu_exporter.profiling.records import CauseShare, CodeLine, FailedProcess, ProcessStacks, ProfiledProcess, Summary
from gpu_exporter.profiling.store import Bounds, ProfileStore

HOSTILE = "python <script>alert(1)</script> ../../x"


def summary(number: int = 0, at: float = 1000.0) -> Summary:
    cause = CauseShare(TraceCause.DATA_LOADING, "waiting", 4.5, 0.9, (CodeLine("/a.py(3): load_batch", 0.9),))
    process = ProfiledProcess(7, 1000, HOSTILE, "0", ("GPU-0",), 250, (cause,))
    failed = FailedProcess(8, 1000, "sleep", SamplingFailure.NOT_PYTHON, "no Python")
    return Summary(f"{number:013}", at, ProfileReason.STALL, "x", ("GPU-0",), (0,), 5.0, 50, (process,), (failed,))


STACKS = (ProcessStacks(7, (0,), {"main thread;/a.py(3): load_batch": 4.5}),)


def test_profiles_come_back(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "profiles"
    first = ProfileStore(folder, Bounds())
    assert first.add(summary(), STACKS)
    (folder / "0000000000009.draft").write_text("half")
    (folder / "gpu-exporter-x").mkdir()
    (folder / "gpu-exporter-x" / "7.folded").write_text("x")
    (folder / "0000000000001.profile.gz").write_text("damaged")
    (folder / "README").write_text("of somebody else")
    again = ProfileStore(folder, Bounds())
    again.load(1000.0)
    assert again.summaries == [summary()]
    assert again.stacks("0000000000000") == list(STACKS)
    assert sorted(path.name for path in folder.iterdir()) == ["0000000000000.profile.gz", "README"]
    modes = [path.stat().st_mode & 0o777 for path in (folder, folder / "0000000000000.profile.gz")]
    assert modes == [0o700, 0o600]


@pytest.mark.parametrize("profile_id", ["../../etc/passwd", "", "0000000000001", "0" * 13 + "/"])
def test_only_stored_ids_are_read(tmp_path: Path, profile_id: str) -> None:
    made = ProfileStore(tmp_path, Bounds())
    made.add(summary(), STACKS)
    assert made.stacks(profile_id) is None


def test_a_file_that_is_not_in_the_list_is_not_read(tmp_path: Path) -> None:
    """Such as one beside the folder, which a path would lead to."""
    made = ProfileStore(tmp_path / "profiles", Bounds())
    made.add(summary(), STACKS)
    (tmp_path / "other.profile.gz").write_bytes(records.encode(summary(), STACKS))
    assert made.stacks("../other") is None


@pytest.mark.parametrize(
    "bounds", [Bounds(count=3), Bounds(seconds=2.5), Bounds(bytes=3 * len(records.encode(summary(), STACKS)) + 20)]
)
def test_the_oldest_are_removed(tmp_path: Path, bounds: Bounds) -> None:
    made = ProfileStore(tmp_path, bounds)
    for number in range(10):
        made.add(summary(number, 1000.0 + number), STACKS)
        assert len(list(tmp_path.iterdir())) == len(made.summaries) <= 3
    assert [each.id for each in made.summaries] == [f"{number:013}" for number in (7, 8, 9)]
    again = ProfileStore(tmp_path, bounds)
    again.load(1011.0)
    assert len(again.summaries) == (1 if bounds.seconds == 2.5 else 3)


def test_a_full_disk_keeps_the_summary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One line reports it, however often it happens; afterwards everything works again."""
    made = ProfileStore(tmp_path, Bounds())

    def full(path: Path, content: bytes) -> None:
        path.write_bytes(content[:10])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(store, "write_private", full)
        assert not made.add(summary(1), STACKS)
        assert not made.add(summary(2), STACKS)
    assert [record.getMessage().partition("cannot")[2] for record in caplog.records] == [
        " be stored: No space left on device; only its summary is kept"
    ]
    assert not list(tmp_path.iterdir())
    assert made.stacks(f"{1:013}") is None
    assert made.add(summary(3), STACKS)
    assert [each.id for each in made.summaries] == [f"{number:013}" for number in (1, 2, 3)]


def test_a_folder_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(GpuExporterError, match="must be a folder of this user, and no link"):
        ProfileStore(tmp_path / "link", Bounds())
    (tmp_path / "file").write_text("")
    with pytest.raises(GpuExporterError, match="File exists: choose another folder"):
        ProfileStore(tmp_path / "file", Bounds())


def test_huge_profiles_lose_their_stacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MOST_BYTES", len(records.encode(summary(), ())) + 100)
    made = ProfileStore(tmp_path, Bounds())
    random = os.urandom(2000).hex()
    made.add(summary(), [ProcessStacks(7, (0,), {random: 1.0})])
    assert made.stacks(summary().id) == []


def test_only_the_most_costly_stacks_are_kept() -> None:
    from gpu_exporter.profiling.processes import Process
    from gpu_exporter.profiling.pyspy import Sampling
    from gpu_exporter.profiling.result import ProcessProfile

    stacks = {f"main thread;f{number}": float(number) for number in range(1, records.MOST_STACKS + 3)}
    process = Process(7, 1, 0, "python", 7, (0,))
    kept = records.process_stacks(ProcessProfile(process, Sampling(), 1, (), stacks))
    assert (len(kept.stacks), kept.left_out) == (records.MOST_STACKS, 3.0)


def test_shares_are_of_the_processes_on_the_gpu() -> None:
    assert records.cause_shares(summary(), "GPU-0") == {TraceCause.DATA_LOADING: 1.0}
    assert not records.cause_shares(summary(), "GPU-1")


def test_the_newest_profiles_of_a_folder(tmp_path: Path) -> None:
    """For another process, which must not change anything."""
    made = ProfileStore(tmp_path, Bounds())
    for number in (1, 2, 3):
        made.add(summary(number, 1000.0 + number), STACKS)
    (tmp_path / "0000000000004.profile.gz").write_text("damaged")
    (tmp_path / "x.profile.gz").write_text("of somebody else")
    (tmp_path / "0000000000005.draft").write_text("half")
    assert [each.at for each in store.newest(tmp_path, 1002.0)] == [1002.0, 1003.0]
    assert [each.at for each in store.newest(tmp_path, 1002.1)] == [1003.0]
    assert store.newest(tmp_path / "missing", 0.0) == []
    assert len(list(tmp_path.iterdir())) == 6


@pytest.mark.parametrize(("age", "kept"), [(60.0, 1), (60.1, 0)])
def test_the_age_of_profiles(tmp_path: Path, age: float, kept: int) -> None:
    made = ProfileStore(tmp_path, Bounds(seconds=60.0))
    made.add(summary(), STACKS)
    made.load(1000.0 + age)
    assert len(made.summaries) == len(list(tmp_path.iterdir())) == kept


def test_a_full_folder_makes_room(tmp_path: Path) -> None:
    """Before a file is written, so that the folder never exceeds its bounds."""
    size = len(records.encode(summary(), STACKS))
    made = ProfileStore(tmp_path, Bounds(bytes=2 * size + 9, count=2))
    for number in (1, 2):
        made.add(summary(number), STACKS)
    assert len(made.summaries) == 2
    seen = []
    write = file_access.write_private

    def noted(path: Path, content: bytes) -> None:
        seen.append(len(list(tmp_path.iterdir())))
        write(path, content)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(store, "write_private", noted)
        made.add(summary(3), STACKS)
    assert seen == [1]
    assert [each.id for each in made.summaries] == [f"{number:013}" for number in (2, 3)]
    exact = sum(len(records.encode(summary(number), STACKS)) for number in (1, 2))
    for spare, kept in ((0, 2), (-1, 1)):
        made = ProfileStore(tmp_path / str(kept), Bounds(bytes=exact + spare))
        for number in (1, 2):
            made.add(summary(number), STACKS)
        assert len(made.summaries) == kept


def test_a_folder_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(GpuExporterError, match="must be a folder of this user, and no link: choose another one"):
        ProfileStore(tmp_path, Bounds())


def test_damaged_stacks(tmp_path: Path) -> None:
    made = ProfileStore(tmp_path, Bounds())
    made.add(summary(), STACKS)
    (tmp_path / f"{summary().id}.profile.gz").write_text("damaged")
    assert made.stacks(summary().id) is None
    (tmp_path / f"{summary().id}.profile.gz").unlink()
    assert made.stacks(summary().id) is None
