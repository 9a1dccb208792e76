"""Parents and children of a sender, from files like those of /proc."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_exporter.host.files import HostFiles
from gpu_exporter.jobs import places as family_module
from gpu_exporter.jobs.places import MOST_GENERATIONS, ProcessFamily

Process = Callable[..., None]
# init, shell, torchrun, two ranks, a loader worker of the first one.
INIT, SHELL, TORCHRUN, FIRST, SECOND, WORKER = 1, 10, 20, 31, 32, 40
RANKS = (FIRST, SECOND)


@pytest.fixture
def process(tmp_path: Path) -> Process:
    """Adds a process."""

    def add(pid: int, parent: int, uid: int = 1000) -> None:
        (tmp_path / str(pid)).mkdir(exist_ok=True)
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (python (3)) S {parent} " + "0 " * 48)
        (tmp_path / str(pid) / "status").write_text(f"Name:\tpython3\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")

    for pid, parent in ((SHELL, INIT), (TORCHRUN, SHELL), (FIRST, TORCHRUN), (SECOND, TORCHRUN), (WORKER, FIRST)):
        add(pid, parent)
    return add


class Clock:
    """A clock that the test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def family(tmp_path: Path, clock: Clock, process: Process) -> ProcessFamily:
    return ProcessFamily(HostFiles(tmp_path, tmp_path), clock)


def test_a_loader_worker_belongs_to_its_rank(family: ProcessFamily) -> None:
    assert list(family.relatives(WORKER, 1000, RANKS)) == [FIRST]


def test_the_nearest_parent_counts(family: ProcessFamily) -> None:
    assert list(family.relatives(WORKER, 1000, (TORCHRUN, FIRST))) == [FIRST]


def test_a_launcher_has_all_its_ranks(family: ProcessFamily) -> None:
    assert list(family.relatives(TORCHRUN, 1000, RANKS)) == list(RANKS)
    assert list(family.relatives(SHELL, 1000, RANKS)) == list(RANKS)


def test_init_is_nobodys_parent(family: ProcessFamily, process: Process) -> None:
    assert list(family.relatives(INIT, 1000, RANKS)) == []
    process(2, INIT)
    process(50, 2)
    assert list(family.relatives(50, 1000, (INIT, 2))) == [2]


def test_strangers_and_processes_that_are_not_visible(family: ProcessFamily, process: Process) -> None:
    process(50, INIT)
    for pid in (50, 51, 0):
        assert list(family.relatives(pid, 1000, RANKS)) == []


def test_another_user_is_no_relative(family: ProcessFamily, process: Process) -> None:
    """A service of root starts processes of users, and does not speak for them."""
    assert list(family.relatives(TORCHRUN, 0, (SECOND,))) == []
    process(FIRST, TORCHRUN, uid=1001)
    assert list(family.relatives(WORKER, 1000, RANKS)) == []


def test_distant_relatives_and_loops_end(family: ProcessFamily, process: Process) -> None:
    for pid in range(100, 100 + MOST_GENERATIONS + 1):
        process(pid + 1, pid)
    process(100, FIRST)
    assert list(family.relatives(100 + MOST_GENERATIONS - 1, 1000, RANKS)) == [FIRST]
    assert list(family.relatives(100 + MOST_GENERATIONS, 1000, RANKS)) == []
    process(200, 201)
    process(201, 200)
    assert list(family.relatives(200, 1000, RANKS)) == []


def test_a_pid_that_is_used_again_is_read_again(family: ProcessFamily, process: Process, clock: Clock) -> None:
    assert list(family.relatives(WORKER, 1000, RANKS)) == [FIRST]
    process(WORKER, SECOND)
    assert list(family.relatives(WORKER, 1000, RANKS)) == [FIRST]
    clock.now = 10.0
    assert list(family.relatives(WORKER, 1000, RANKS)) == [FIRST]
    clock.now = 10.5
    assert list(family.relatives(WORKER, 1000, RANKS)) == [SECOND]
    process(WORKER, FIRST)
    clock.now = 20.5
    assert list(family.relatives(WORKER, 1000, RANKS)) == [SECOND]
    clock.now = 21.0
    assert list(family.relatives(WORKER, 1000, RANKS)) == [FIRST]


def test_few_processes_are_remembered(family: ProcessFamily, process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node has thousands of them."""
    assert family_module.MOST_REMEMBERED == 4096
    monkeypatch.setattr(family_module, "MOST_REMEMBERED", 3)
    assert list(family.relatives(FIRST, 1000, (SHELL,))) == [SHELL]  # FIRST, TORCHRUN and SHELL are remembered
    process(FIRST, INIT)
    assert list(family.relatives(FIRST, 1000, (SHELL,))) == [SHELL]
    assert list(family.relatives(WORKER, 1000, (SHELL,))) == [SHELL]
    assert list(family.relatives(FIRST, 1000, (SHELL,))) == []


def test_eight_generations_are_searched() -> None:
    assert MOST_GENERATIONS == 8


def test_a_process_that_may_not_be_read_has_no_relatives(tmp_path: Path, process: Process) -> None:
    class Hidden(HostFiles):
        def process(self, path: str) -> bytes:
            raise PermissionError(path)

    hidden = ProcessFamily(Hidden(tmp_path, tmp_path), Clock())
    assert list(hidden.relatives(WORKER, 1000, RANKS)) == []
    assert list(hidden.relatives(TORCHRUN, -1, RANKS)) == []
