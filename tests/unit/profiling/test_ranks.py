"""Which rank is elsewhere."""

from __future__ import annotations

from gpu_exporter.profiling import html_page, text_report
from gpu_exporter.profiling.processes import Process
from gpu_exporter.profiling.pyspy import Sampling
from gpu_exporter.profiling.ranks import odd_ones
from gpu_exporter.profiling.result import ProcessProfile, process_profile
from gpu_exporter.profiling.stacks import parse
from tests.support.html import Document

PACKAGES = "/v/lib/python3.11/site-packages"
REDUCE = f"step (/t.py:40);all_reduce ({PACKAGES}/torch/distributed/distributed_c10d.py:2800) 98"
REDUCE_LOSS = REDUCE.replace("t.py:40", "t.py:44")
WAIT_FOR_GPU = "step (/t.py:42) 98"
EVALUATE = "evaluate (/t.py:71) 98"


def rank(number: int, *stacks: str) -> ProcessProfile:
    process = Process(10 + number, 1, 0, "t.py", 10 + number, (number,), str(number))
    folded = "\n".join(f"thread (1): MainThread;{stack}" for stack in stacks)
    return process_profile(process, parse(folded), Sampling(2.0, 50))


def test_the_rank_that_the_others_wait_for() -> None:
    ranks = [rank(0, REDUCE), rank(1, REDUCE), rank(2, EVALUATE), rank(3, REDUCE)]
    (odd,) = odd_ones(ranks)
    assert (odd.process.rank, odd.line, odd.others, odd.others_line) == (
        "2",
        "/t.py(71): evaluate",
        3,
        "/t.py(40): step",
    )
    assert list(text_report.lines(ranks))[:3] == [
        "3 of 4 processes are at /t.py(40): step",
        "but process 12 (t.py, rank 2) on GPU 2 is at /t.py(71): evaluate",
        "",
    ]
    assert "3 of 4 processes are at /t.py(40): step, but process 12" in Document(html_page.page(ranks)).text


def test_ranks_that_make_progress() -> None:
    """Their lines differ, or they are on several."""
    both = (REDUCE, "load (/t.py:3) 50")
    assert not odd_ones([rank(0, *both), rank(1, *both), rank(2, EVALUATE), rank(3, *both)])
    assert not odd_ones([rank(0, REDUCE), rank(1, REDUCE), rank(2, REDUCE)])
    assert not odd_ones([rank(0, REDUCE), rank(1, EVALUATE)])
    assert not odd_ones([rank(0, REDUCE), rank(1, REDUCE), rank(2, EVALUATE), rank(3, EVALUATE)])
    assert not odd_ones([rank(0), rank(1), rank(2, EVALUATE)])


def test_two_ranks_of_which_one_never_entered_the_collective() -> None:
    """There is no majority, but the GPU of the missing rank does nothing."""
    two = [rank(0, REDUCE), rank(1, EVALUATE)]
    (odd,) = odd_ones(two, {11})
    assert (odd.process.rank, odd.line, odd.others, odd.others_line) == (
        "1",
        "/t.py(71): evaluate",
        1,
        "/t.py(40): step",
    )
    assert not odd_ones(two, {10, 11})
    assert not odd_ones([rank(0, REDUCE), rank(1, "load (/t.py:3) 50", REDUCE)], {10})


def test_ranks_of_several_groups_wait_on_different_lines() -> None:
    """Ranks 0 and 1 wait for the loss of all ranks; rank 2 waits for its GPU, which waits for rank 3."""
    ranks = [rank(0, REDUCE_LOSS), rank(1, REDUCE_LOSS), rank(2, WAIT_FOR_GPU), rank(3, EVALUATE)]
    (odd,) = odd_ones(ranks, {11, 13})
    assert (odd.process.rank, odd.line, odd.others, odd.others_line) == (
        "3",
        "/t.py(71): evaluate",
        2,
        "/t.py(44): step",
    )
    # Without the GPUs, the line of rank 2 says nothing.
    assert not odd_ones(ranks)
    ranks[2] = rank(2, REDUCE)
    assert [each.process.rank for each in odd_ones(ranks)] == ["3"]
    assert not odd_ones([rank(0, REDUCE), rank(1, REDUCE_LOSS), rank(2, EVALUATE), rank(3, EVALUATE)])
