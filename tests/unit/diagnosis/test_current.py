"""The running diagnosis agrees with `diagnose`, remembers since when, and knows who waits for whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.failure_modes import profiles
from gpu_exporter.diagnosis.diagnose import diagnose
from gpu_exporter.diagnosis.headline import findings, headline
from gpu_exporter.diagnosis.rolling import RankState, Watch
from gpu_exporter.diagnosis.scrape import DeviceKey
from gpu_exporter.diagnosis.window import Scrapes, seen
from gpu_exporter.model.gpu import Gpu, Sample, Series
from gpu_exporter.model.metric import Metric
from gpu_exporter.model.snapshot import GpuStatus, Snapshot
from gpu_exporter.model.verdict import Action, Problem, Verdict

GPUS = tuple(Gpu(index, f"GPU-{index}", model="NVIDIA H200") for index in range(4))
Values = Mapping[Metric, float]


def snapshots(
    of_gpus: Sequence[Values], job: str = "train", begin: float = 1000.0, number: int = 22, *, slurm: bool = False
) -> list[Snapshot]:
    """Return snapshots of one second each, in which the GPUs have the same values."""
    series = [
        (Series(metric, gpu), value)
        for gpu, values in zip(GPUS, of_gpus, strict=False)
        for metric, value in values.items()
    ]
    owners = [
        (Series(m.JOB_INFO, gpu, (("job_id", job), ("step", "0"))), 1.0)
        if slurm
        else (Series(m.POD_INFO, gpu, (("namespace", "ml"), ("pod", f"{job}-{gpu.index}"), ("workload", job))), 1.0)
        for gpu in GPUS[: len(of_gpus)]
        if job
    ]
    ups = [(Series(m.UP, gpu), 1.0) for gpu in GPUS[: len(of_gpus)]]
    statuses = tuple(GpuStatus(gpu, True) for gpu in GPUS[: len(of_gpus)])
    samples = tuple(Sample(*each) for each in (*series, *owners, *ups))
    return [Snapshot(begin + n, "nvml", samples, statuses) for n in range(number)]


def watched(taken: Sequence[Snapshot], watch: Watch | None = None) -> Watch:
    """Return what watched these snapshots and judged them at their end."""
    watch = watch or Watch()
    for snapshot in taken:
        watch.take(snapshot)
    watch.judge(taken[-1])
    return watch


def device(index: int) -> DeviceKey:
    """Return the key of a whole GPU."""
    return DeviceKey("", GPUS[index].uuid, "")


def test_it_agrees_with_diagnose() -> None:
    """The same scrapes give the same class, findings and numbers."""
    taken = snapshots([profiles.STARVED, *[profiles.OF_STARVED] * 3])
    scrapes = Scrapes()
    for snapshot in taken:
        scrapes.take(snapshot)
    whole = {each.device: each for each in diagnose(seen(scrapes.taken, {}))}
    current = watched(taken).current
    assert current.diagnoses.keys() == whole.keys()
    for key, diagnosis in current.diagnoses.items():
        assert diagnosis.bottleneck == whole[key].bottleneck
        assert [match.mode.name for match in diagnosis.matches] == [match.mode.name for match in whole[key].matches]
        assert diagnosis.numbers.keys() == whole[key].numbers.keys()


@pytest.mark.parametrize("every", [5, 10])
def test_fewer_snapshots_suffice(every: int) -> None:
    """While nobody looks, snapshots are watched more rarely: class and findings are the same."""
    taken = snapshots([profiles.STARVED, *[profiles.OF_STARVED] * 3], number=41)
    often, rarely = watched(taken).current.diagnoses, watched(taken[::every]).current.diagnoses
    assert often.keys() == rarely.keys()
    for key, diagnosis in often.items():
        assert diagnosis.bottleneck == rarely[key].bottleneck
        assert [match.mode.name for match in diagnosis.matches] == [match.mode.name for match in rarely[key].matches]


def test_old_points_are_forgotten() -> None:
    """After the work has changed, a window of twenty seconds later only the new one counts, as for `diagnose`."""
    watch = watched(snapshots([profiles.STARVED, *[profiles.OF_STARVED] * 3]))
    before = watch.current
    watched(snapshots([profiles.GEMM] * 4, begin=1022.0, number=30), watch)
    assert before.diagnoses[device(0)].matches
    assert not watch.current.diagnoses[device(0)].matches
    assert before.since[device(0), "GpuStragglerStarved"] == 1021.0
    assert watch.current.since[device(0), ""] == 1051.0


def test_since_stays_while_nothing_changes() -> None:
    """The time of a class and of a finding is that of the first diagnosis that has it."""
    watch = watched(snapshots([profiles.STARVED, *[profiles.OF_STARVED] * 3]))
    first = dict(watch.current.since)
    watched(snapshots([profiles.STARVED, *[profiles.OF_STARVED] * 3], begin=1022.0), watch)
    assert dict(watch.current.since) == first


def test_errors_are_counted_for_as_long_as_their_alert_counts_them() -> None:
    """Their growth in twenty seconds says little: the mode is not judged until it is too large, or an hour has gone."""
    watch = Watch()

    def after(seconds: int, errors: float) -> tuple[bool, bool]:
        values = {**profiles.GEMM, m.NVLINK_REPLAY: errors, m.NVLINK_RECOVERY: 0.0, m.NVLINK_CRC: 0.0}
        watched(snapshots([values], begin=1000.0 + seconds, number=2), watch)
        found = watch.current.diagnoses[device(0)]
        return "GpuNvlinkErrors" in {match.mode.name for match in found.matches}, "GpuNvlinkErrors" in found.unknown

    assert after(0, 5.0) == (False, True)
    assert [after(30 * n, 5.0 + n) for n in range(1, 11)] == [(False, True)] * 10
    assert after(330, 16.0) == (True, False)
    assert {after(330 + 30 * n, 16.0) for n in range(1, 109)} == {(True, False)}
    assert [after(3600 + 30 * n, 16.0) for n in range(12)][-1] == (False, False)


def test_a_straggler_is_found_beside_a_gpu_that_has_not_answered_since_the_start() -> None:
    """The job has begun without it."""
    ranks = [profiles.STARVED, *[profiles.OF_STARVED] * 2, {}]
    taken = [
        replace(
            each,
            samples=tuple(
                Sample(of.series, 0.0) if of.series.metric is m.UP and of.series.gpu is GPUS[3] else of
                for of in each.samples
            ),
        )
        for each in snapshots(ranks)
    ]
    found = watched(taken).current.diagnoses
    assert found[device(3)].is_down
    assert "GpuStragglerStarved" in {match.mode.name for match in found[device(0)].matches}


def test_who_waits_for_whom() -> None:
    """The others wait for a starved rank. Without a job, nobody is compared."""
    ranks = {
        rank.device: rank.state
        for rank in watched(snapshots([profiles.STARVED, *[profiles.OF_STARVED] * 3])).current.jobs["ml/train"]
    }
    assert ranks[device(0)] is RankState.WAITED_FOR
    assert {ranks[device(n)] for n in (1, 2, 3)} == {RankState.WAITING}
    assert watched(snapshots([profiles.GEMM] * 2, job="")).current.jobs == {}


HOT = {m.CLOCK_EVENTS: 64.0}
WAITED_FOR, WAITING, WORKING, LIMITED = RankState.WAITED_FOR, RankState.WAITING, RankState.WORKING, RankState.LIMITED


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ([profiles.BALANCED] * 2, [WORKING, WORKING]),
        ([profiles.OF_SLOW, profiles.SLOW], [WAITING, WAITED_FOR]),
        ([profiles.HANGING, profiles.ABSENT], [WAITING, WAITED_FOR]),
        ([profiles.HANGING, profiles.HANGING], [WAITING, WAITING]),
        # The first one waits for an evaluation on the other: no data moves, and nothing hangs.
        ([profiles.HANGING, profiles.GEMM], [WAITING, WORKING]),
        ([profiles.SLEEPY] * 2, [LIMITED, LIMITED]),
        ([profiles.GEMM, {**profiles.GEMM, **HOT}], [WORKING, LIMITED]),
        ([profiles.GEMM, {m.GR_ENGINE_ACTIVE: 1.0}], [WORKING, RankState.UNKNOWN]),
    ],
)
def test_a_rank_works_only_if_that_is_shown(ranks: Sequence[Values], expected: Sequence[RankState]) -> None:
    """Its class and the shares of its time decide."""
    states = {rank.device: rank.state for rank in watched(snapshots(ranks)).current.jobs["ml/train"]}
    assert [states[device(index)] for index in range(len(ranks))] == expected


def test_jobs_of_slurm_are_compared() -> None:
    """As pods are: a snapshot has the jobs of job files and cgroups only as gpu_job_info."""
    current = watched(snapshots([profiles.STARVED, *[profiles.OF_STARVED] * 3], "4711", slurm=True)).current
    assert [rank.device for rank in current.jobs["4711"]] == [device(n) for n in range(4)]
    assert "GpuStragglerStarved" in [match.mode.name for match in current.diagnoses[device(0)].matches]


def test_a_gpu_with_two_jobs_of_slurm_is_of_none() -> None:
    taken = snapshots([profiles.GEMM] * 4, "4711", slurm=True)
    other = Sample(Series(m.JOB_INFO, GPUS[0], (("job_id", "4712"),)), 1.0)
    taken = [replace(snapshot, samples=(*snapshot.samples, other)) for snapshot in taken]
    assert [rank.device for rank in watched(taken).current.jobs["4711"]] == [device(n) for n in (1, 2, 3)]


def test_a_gpu_that_is_listed_no_more() -> None:
    """Nothing is said about it, although its last points are younger than the window."""
    watch = watched(snapshots([profiles.GEMM] * 2, job=""))
    assert device(1) in watch.current.diagnoses
    watched(snapshots([profiles.GEMM], job="", begin=1022.0, number=3), watch)
    assert device(1) not in watch.current.diagnoses


def test_headlines() -> None:
    """What is worst comes first: no answer, then a fault, then a finding, then what limits the GPU."""
    (snapshot, *_), diagnosis = (
        snapshots([profiles.STARVED]),
        watched(snapshots([profiles.STARVED, *[profiles.OF_STARVED] * 3])).current.diagnoses[device(0)],
    )
    status, gpu = snapshot.gpus[0], GPUS[0]
    problem = Problem(m.REMAP_FAILURE, 1.0, "a row remap has failed", Action.REPLACE, "row_remap_failed")
    broken = Verdict(gpu, (problem,))
    lost = GpuStatus(gpu, False, "lost")
    assert headline(lost, broken, diagnosis)[:2] == ("critical", "Lost: it fell off the bus")
    assert headline(status, broken, diagnosis)[:2] == ("critical", "A row remap has failed: replace the GPU")
    assert headline(GpuStatus(gpu, False, "released"), None, None).severity == "info"
    found = headline(status, None, diagnosis)
    assert found == ("warning", "This GPU slows down job train: it waits for its CPU or data", "GpuStragglerStarved")
    assert headline(status, None, None).severity == "unknown"
    entry = next(each for each in findings(diagnosis) if each["name"] == "GpuStragglerStarved")
    assert entry["words"] == found.words
    assert any("%" in text for text in entry["evidence"])


@pytest.mark.parametrize(
    ("values", "severity", "advice"),
    [
        ({m.POWER: 395.0, m.POWER_LIMIT: 400.0}, "warning", "Raise the power limit of this GPU"),
        ({m.POWER: 560.0, m.POWER_LIMIT: 700.0}, "warning", "Move the job to another GPU if"),
        ({m.POWER: 675.0, m.POWER_LIMIT: 700.0}, "info", "no fault. Balance the work"),
        ({m.POWER: 560.0}, "warning", "Compare the power limits of the ranks"),
    ],
)
def test_the_advice_about_a_straggler_follows_from_its_power(values: Values, severity: str, advice: str) -> None:
    """Of a limit that is not known, the advice says how to look."""
    slow = {**profiles.SLOW, **values}
    peers = {**profiles.OF_SLOW, **({m.POWER_LIMIT: 700.0} if m.POWER_LIMIT in values else {})}
    watch = watched(snapshots([slow, *[peers] * 3]))
    (found,) = [each for each in findings(watch.current.diagnoses[device(0)]) if each["name"] == "GpuStragglerSlow"]
    (incident,) = [each for each in watch.current.incidents if each["cause"] == "GpuStragglerSlow"]
    assert found["severity"] == severity
    assert advice in found["advice"]
    assert incident["advice"] == found["advice"]
