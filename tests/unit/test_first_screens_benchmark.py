"""The fleet in which `benchmarks.first_screens` opens dashboards: how a small history becomes a large one."""

from __future__ import annotations

from benchmarks.dashboard import lookups, queries, read
from benchmarks.first_screens import CHOSEN, LARGE_JOB, OF_THE_JOB, USUAL, Copy, copies, multiplied
from tests.boards import plan


def test_as_many_nodes_and_ranks_as_asked() -> None:
    made = list(copies(2000, 1024))
    assert len({copy.number for copy in made} | set(range(len(plan.placed())))) == 2000
    ranks = sorted(copy.rank for copy in made if copy.rank is not None)
    assert ranks == list(range(24, 1024, plan.GPUS))
    assert {copy.node for copy in made} == plan.placed().keys() - {"node-000", "node-001"}


def test_copies_of_a_series() -> None:
    """A rank of the large job stays in it; another GPU gets a job of its own. Sums exist once for each job. Quiet nodes
    have no alerts."""
    of_rank = {"node": OF_THE_JOB, "UUID": "GPU-1", "rank": "17", "workload": LARGE_JOB, "pod": "p-2"}
    of_other = {"instance": f"{USUAL}:9400", "UUID": "GPU-2", "workload": "llm-serve"}
    sums = [{"workload": LARGE_JOB}, {"workload": "llm-serve"}, {"cluster": "west"}]
    made = [Copy(OF_THE_JOB, 8, 24), Copy(USUAL, 9), Copy(USUAL, 10, quiet=True)]
    alert = {"alertname": "GpuMemoryBound", "node": USUAL}
    found = [labels for labels, _ in multiplied(iter([(each, []) for each in (of_rank, of_other, alert, *sums)]), made)]
    assert found == [
        of_rank,
        {"node": "node-0008", "UUID": "GPU-1-8", "rank": "25", "workload": LARGE_JOB, "pod": "p-2-8"},
        of_other,
        {"instance": "node-0009:9400", "UUID": "GPU-2-9", "workload": "llm-serve-9"},
        {"instance": "node-0010:9400", "UUID": "GPU-2-10", "workload": "llm-serve-10"},
        alert,
        {"alertname": "GpuMemoryBound", "node": "node-0009"},
        *sums[:2],
        {"workload": "llm-serve-9"},
        {"workload": "llm-serve-10"},
        sums[2],
    ]


def test_everything_that_is_asked_is_copied() -> None:
    """Selectors are those of variables and queries, without what depends on the time."""
    for board, chosen in CHOSEN.items():
        assert len(list(queries(board, chosen))) > 10
        selectors = read(board, chosen)
        assert {parameters["match[]"].replace(", ", ",") for _, parameters in lookups(board, chosen)} <= selectors
        assert not any(word in selector for selector in selectors for word in (" offset ", "[", "$"))
