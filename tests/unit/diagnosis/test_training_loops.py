"""What training loops say is judged on the node as the rules judge it: the stories of `tests/rules/test_jobs.py`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.failure_modes.loops import TrainingLoop
from gpu_exporter.catalogue.failure_modes.mode import Ramp
from gpu_exporter.diagnosis.diagnose import Diagnosis, diagnose
from gpu_exporter.diagnosis.headline import findings
from gpu_exporter.diagnosis.rolling import RollingWindow
from gpu_exporter.diagnosis.scrape import Scrape, ScrapedSample, samples_by_name
from tests.rules.loops import (
    COUNTER,
    LONG_SHARE,
    MEASURED,
    WITH_LONG_STEPS,
    Loop,
    Story,
    Stretch,
    changed,
    of_shares,
    paused,
    scaled,
    varied,
    with_long_steps,
)

LABEL = re.compile(r'(\w+)="([^"]*)"')
HOUR = 60.0
FIRST = 1.7e9


def scrapes(story: Story, every: float) -> Iterator[Scrape]:
    """Yield what an exporter exposes of the ranks of a job, every so many seconds."""
    reached: dict[str, float] = {}
    labels = {key: dict(LABEL.findall(key)) for stretch in story for key in stretch.loop}
    at = 0.0
    for minutes, loop in story:
        for _ in range(round(minutes * 60 / every)):
            samples = []
            for key, value in loop.items():
                if not isinstance(value, Ramp):
                    number = value
                elif COUNTER.search(key):
                    number = reached[key] = reached.get(key, value.start) + value.per_second * every
                else:  # a time
                    number = value.start + at * value.per_second
                moment = key.startswith((m.JOB_STEPPED_AT.name, m.JOB_STARTED_AT.name, m.JOB_ENDED_AT.name))
                samples.append(ScrapedSample(key.partition("{")[0], labels[key], number + FIRST * moment))
            for each in {tuple(of.items()): of for of in labels.values()}.values():
                owner = {"UUID": each["UUID"], "gpu": each["rank"], "modelName": "NVIDIA H200", "Hostname": "node"}
                samples.append(ScrapedSample(m.GR_ENGINE_ACTIVE.name, {**owner, "pod": "job-worker-0"}, 1.0))
            yield Scrape(FIRST + at, samples)
            at += every


def judged(story: Story, every: float = 1.0) -> Mapping[str, Diagnosis]:
    """Return the diagnosis of each rank at the end, as a running exporter makes it: once in every few scrapes."""
    window = RollingWindow(20.0)
    for number, scrape in enumerate(scrapes(story, every)):
        window.add(scrape.at, samples_by_name(scrape.samples))
        if number % 2:
            window.recent()
    return {each.identity.gpu: each for each in diagnose(window.recent())}


def found(story: Story, every: float = 1.0) -> Mapping[str, set[str]]:
    """Return the failure modes of training loops by rank, where there are some."""
    by_rank = {
        gpu: {match.mode.name for match in each.matches if match.mode.name.startswith("GpuJob")}
        for gpu, each in judged(story, every).items()
    }
    return {gpu: names for gpu, names in by_rank.items() if names}


def everyone(name: str, ranks: int = 4) -> Mapping[str, set[str]]:
    return {str(rank): {name} for rank in range(ranks)}


def of_self(number: int) -> str:
    return rf'self_seconds_sum{{.*rank="{number}"'


def even() -> Loop:
    loop: Loop = TrainingLoop("job")
    for number in range(4):
        loop = scaled(loop, of_self(number), 1 + 0.05 * number)
    return loop


def evaluates_on_rank_0() -> Loop:
    return changed(TrainingLoop("job", ranks=2, own=1.5), r'rank="0".*activity="evaluation"', Ramp(0.0, 0.3))


STRAGGLERS: Mapping[str, tuple[Callable[[], Loop], set[str]]] = {
    "one": (lambda: TrainingLoop("job", own=1.2, ranks=6), {"5"}),
    "two": (lambda: scaled(TrainingLoop("job", own=1.3, ranks=6), of_self(0), 1.2), {"0", "5"}),
    "even": (even, set()),
    "cheap": (lambda: scaled(TrainingLoop("job", own=1.5), "self_seconds_sum", 0.1), set()),
    "of two": (lambda: TrainingLoop("job", own=1.4, ranks=2), {"1"}),
    "one of three": (lambda: TrainingLoop("job", own=1.15, ranks=3), {"2"}),
    "alike, as CPUs measure": (lambda: TrainingLoop("job", own=1.15, ranks=3, clock=""), set()),
    "alone": (lambda: TrainingLoop("job", own=2, ranks=1), set()),
    "an evaluation of rank 0": (evaluates_on_rank_0, set()),
}


@pytest.mark.parametrize("name", STRAGGLERS)
def test_stragglers(name: str) -> None:
    loop, slow = STRAGGLERS[name]
    assert found([Stretch(1, loop())]) == {rank: {"GpuJobStraggler"} for rank in slow}


def test_a_straggler_in_words() -> None:
    """With its phase; and how often it was restarted, if it was."""
    key = f'{m.JOB_RESTARTS}{{job_id="job",rank="3",gpu="3",UUID="GPU-job-3"}}'
    loop = {**TrainingLoop("job", own=1.25), key: 2.0}
    (finding,) = findings(judged([Stretch(1, loop)])["3"])
    assert finding["words"] == "This rank is a straggler: the other ranks of its training job wait for it"
    assert finding["evidence"] == [
        "the other ranks wait for it 20 % of each step",
        "ranks may differ by 2.8 % of a step",
        "rank 3 of its training job",
        "restarts of this rank: 2",
        "its phase backward takes 100 ms longer in each step",
    ]


@pytest.mark.parametrize(("seconds", "slow"), [(4, set()), (8, {"3"})])
def test_a_straggler_of_few_steps(seconds: float, slow: set[str]) -> None:
    """Two steps a second: the first ones differ by chance, and ten are needed for a verdict within 20 s."""
    story = [Stretch(seconds / 60, TrainingLoop("job", own=1.25))]
    assert found(story) == {rank: {"GpuJobStraggler"} for rank in slow}


@pytest.mark.parametrize("name", MEASURED)
def test_stragglers_by_measured_times(name: str) -> None:
    own, waits, slow = MEASURED[name]
    story = [Stretch(0.5, of_shares("job", own, waits))]
    assert found(story) == {str(rank): {"GpuJobStraggler"} for rank in slow}


@pytest.mark.parametrize(("seconds", "slow"), [(10, set()), (20, {"1"})])
def test_a_rank_that_stands_out_does_so_in_both_halves(seconds: float, slow: set[str]) -> None:
    """Self times vary with the batch: here, rank 1 was slow in the first seconds of a window of 20 s, or in all."""
    usual, waits = (0.7, 0.72, 0.72, 0.68), (0.25, 0.25, 0.25, 0.25)
    longer = of_shares("job", (0.7, 0.83 + 0.12 * (seconds < 20), 0.72, 0.68), waits)
    story = [Stretch(seconds / 60, longer), Stretch((21 - seconds) / 60, of_shares("job", usual, waits))]
    assert found(story) == {rank: {"GpuJobStraggler"} for rank in slow}


@pytest.mark.parametrize("seconds", [2, 4])
def test_a_few_slow_steps_make_no_straggler(seconds: float) -> None:
    """Rank 1 took three times as long for its first steps; their mean is 20 to 40 % longer for the whole window."""
    usual, waits = (0.7, 0.7, 0.71, 0.7), (0.25, 0.25, 0.25, 0.25)
    slow = of_shares("job", (0.7, 2.1, 0.71, 0.7), waits)
    story = [Stretch(seconds / 60, slow), Stretch((20 - seconds) / 60, of_shares("job", usual, waits))]
    assert found(story) == {}


def test_a_launch_bound_job_is_judged_over_a_whole_window() -> None:
    """Half of it would do elsewhere: within seconds, one of its ranks is the last by chance."""
    own, waits, (slow,) = MEASURED["launch-bound-and-slow"]
    loop = of_shares("job", own, waits)
    assert found([Stretch(12 / 60, loop)]) == {}
    assert found([Stretch(22 / 60, loop)]) == {str(slow): {"GpuJobStraggler"}}


@pytest.mark.parametrize(("share", "slow"), [(0.0, {"1"}), (LONG_SHARE, set())])
def test_rare_long_steps_do_not_hide_that_a_job_is_launch_bound(share: float, slow: set[str]) -> None:
    loop = with_long_steps(of_shares("job", *WITH_LONG_STEPS), share)
    assert found([Stretch(0.5, loop)]) == {rank: {"GpuJobStraggler"} for rank in slow}


def test_ranks_are_compared_once_all_of_them_are_known() -> None:
    """The stages of a pipeline differ, and self times are measured in some steps only: of two ranks, in ten by now."""
    loop = of_shares("job", (0.16, 0.23, 0.29, 0.16), (0.8, 0.7, 0.7, 0.8))
    for rank in (0, 2):
        loop = scaled(loop, rf'self_seconds.*rank="{rank}"', 0.5)
    assert found([Stretch(8 / 60, loop)]) == {}


@pytest.mark.parametrize(("seconds", "slow"), [(8, set()), (70, {"3"})])
def test_a_straggler_whose_self_time_is_measured_in_one_of_eight_steps(seconds: float, slow: set[str]) -> None:
    usual = scaled(TrainingLoop("job"), "self_seconds", 1 / 8)
    stretch = scaled(TrainingLoop("job", own=1.25), "self_seconds", 1 / 8)
    assert found([Stretch(2, usual), Stretch(seconds / 60, stretch)]) == {rank: {"GpuJobStraggler"} for rank in slow}


def test_a_rank_is_not_slow_for_its_waiting() -> None:
    loop = scaled(TrainingLoop("job", own=1.25), 'phase="backward"', 0.1)
    loop = scaled(loop, 'phase="waiting".*rank="3"|rank="3".*phase="waiting"', 2.0)
    (finding,) = findings(judged([Stretch(1, loop)])["3"])
    assert not [text for text in finding["evidence"] if "phase waiting" in text]


@pytest.mark.parametrize("own", [1.4, 2.0])
def test_rare_long_steps_are_not_the_phase_that_is_longer(own: float) -> None:
    """They are no part of the self time."""
    loop = with_long_steps(TrainingLoop("job", own=own), 0.0)
    loop = changed(loop, 'phase="long_steps".*rank="3"|rank="3".*phase="long_steps"', Ramp(0.0, 0.9))
    (finding,) = findings(judged([Stretch(1, loop)])["3"])
    assert [text.split()[2] for text in finding["evidence"] if text.startswith("its phase")] == ["backward"]


@pytest.mark.parametrize("own", [1.4, 2.0])
def test_where_steps_differ_much_a_few_make_no_straggler(own: float) -> None:
    """As where sequences have different lengths: 20 s with 40 steps tell that a rank takes twice as long, and five
    minutes that it takes two fifths longer."""
    usual = varied(TrainingLoop("job", ranks=3), 0.5)
    loop = varied(TrainingLoop("job", own=own, ranks=3), 0.5)
    slow = {"2": {"GpuJobStraggler"}}
    assert found([Stretch(0.5, loop)]) == (slow if own == 2.0 else {})
    assert found([Stretch(0.5, usual), Stretch(4, loop)]) == slow


def test_one_slow_step_makes_no_straggler() -> None:
    """After a standstill, the first step is a long one of the rank that was stuck."""
    usual, stuck = (varied(TrainingLoop("job", ranks=3), 0.0) for _ in range(2))
    for name, per_second in ((f"{m.JOB_SELF}_sum", 60.0), (m.JOB_SELF_SQUARES.name, 3600.0)):
        stuck = changed(stuck, rf'{name}{{.*rank="1"', Ramp(0.0, per_second))
    still = {
        key: Ramp(0.0, 0.0) if isinstance(value, Ramp) and COUNTER.search(key) else value
        for key, value in {**usual, **TrainingLoop("job", ranks=3, since=60.0)}.items()
    }
    assert found([Stretch(1, usual), Stretch(1, still), Stretch(1 / 60, stuck), Stretch(4 / 60, usual)]) == {}


def steps_until(minutes: float) -> Loop:
    return TrainingLoop("job", since=minutes * 60)


@pytest.mark.parametrize(
    ("story", "expected"),
    [
        ([Stretch(1, TrainingLoop("job")), Stretch(0.3, steps_until(1))], {}),
        ([Stretch(1, TrainingLoop("job")), Stretch(0.5, steps_until(1))], everyone("GpuJobStalled")),
        ([Stretch(1, TrainingLoop("job")), Stretch(10, steps_until(1))], everyone("GpuJobStalled")),
        ([Stretch(1, TrainingLoop("job")), Stretch(10, paused(TrainingLoop("job")))], {}),
        (
            [Stretch(1, TrainingLoop("job")), Stretch(1, TrainingLoop("job", ends=True))],
            {"3": {"GpuJobRankEnded"}},
        ),
    ],
    ids=["18 s", "30 s", "10 min", "evaluation", "a rank ended"],
)
def test_stalls_and_ends(story: Story, expected: Mapping[str, set[str]]) -> None:
    assert found(story, every=3.0) == expected


def test_a_rank_that_runs_again_has_not_ended() -> None:
    trains, ended = TrainingLoop("job"), TrainingLoop("job", ends=True)
    assert found([Stretch(1, trains), Stretch(1, ended), Stretch(0.2, trains)]) == {}


def test_ranks_of_a_job_that_is_over() -> None:
    """Nothing is left to say about them."""
    slow = TrainingLoop("job", own=1.5)
    assert found([Stretch(1, slow), Stretch(0.2, {key: value for key, value in slow.items() if "info" in key})]) == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("story", "expected"),
    [
        ([Stretch(2 * HOUR, TrainingLoop("job")), Stretch(20, TrainingLoop("job", speed=0.7))], "GpuJobSlower"),
        ([Stretch(2 * HOUR, TrainingLoop("job")), Stretch(20, TrainingLoop("job", trains=0.9))], ""),
        ([Stretch(2 * HOUR, TrainingLoop("job", trains=0.6))], "GpuJobGoodputLow"),
        ([Stretch(160, TrainingLoop("job")), Stretch(20, paused(TrainingLoop("job")))], ""),
    ],
    ids=["slower", "evaluates", "loses time", "evaluates for 20 of 180 minutes"],
)
def test_what_compares_with_hours(story: Story, expected: str) -> None:
    assert found(story, every=15.0) == (everyone(expected) if expected else {})
