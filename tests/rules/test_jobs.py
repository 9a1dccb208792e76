"""What training loops say raises the alerts about it, in time, and no others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.failure_modes import loops
from gpu_exporter.catalogue.failure_modes.loops import STEP_SECONDS, TrainingLoop
from gpu_exporter.catalogue.failure_modes.mode import FailureMode, Ramp
from tests import ROOT
from tests.rules.loops import (
    BUSY,
    LONG_SHARE,
    MEASURED,
    WITH_LONG_STEPS,
    Loop,
    Story,
    Stretch,
    changed,
    devices,
    of_shares,
    paused,
    rules,
    scaled,
    series,
    varied,
    with_long_steps,
)
from tests.rules.promtool import COARSE, Case, Expect, check
from tests.rules.series import Device, input_series, minutes, rank

RULES = [ROOT / "alerts" / f"{name}.yaml" for name in ("recording", "distributed", "bottleneck", "cost")]
NAMES = "|".join(mode.name for mode in loops.MODES)
OF_JOBS = [mode for mode in loops.MODES if mode.fleet]
HOUR = 60.0


def fired(job: str, *expected: str) -> Expect:
    """Expect that exactly these alerts about a job fired at any time."""
    alerts = f'last_over_time(ALERTS{{alertstate="firing", alertname=~"{NAMES}", workload="{job}"}}[1d])'
    return Expect(f"group by (alertname) ({alerts})", [({"alertname": name}, 1.0) for name in expected])


def jobs(folder: Path, stories: Mapping[str, Story], *expected: Expect, ranks: int = 8, interval: str = "1m") -> None:
    """Check what is expected of jobs at the end of their stories."""
    gpus = [gpu for name, story in stories.items() for gpu in devices(name, story, ranks)]
    said = [each for name, story in stories.items() for each in series(name, story)]
    check(folder, [Case("jobs", gpus, expected, more=said)], rules=rules(folder), interval=interval)


def injected(mode: FailureMode, before: float, then: float) -> Story:
    """Return the story of an injected mode after some minutes."""
    return [Stretch(before, mode.inject.series_before or mode.inject.series), Stretch(then, mode.inject.series)]


def test_injected_modes_fire(tmp_path: Path) -> None:
    """Each alone, unless it lasts; a job that trains well has no alert."""
    modes = [mode for mode in OF_JOBS if mode.name != "GpuJobMfuDropped"]
    stories = {mode.name.lower(): injected(mode, 2 * HOUR, 2 * HOUR) for mode in modes}
    # A slow job also has a low MFU after an hour, and one that stalls a low goodput.
    stories["gpujobslower"] = injected(by_name("GpuJobSlower"), 3.3 * HOUR, 0.7 * HOUR)
    stories["gpujobstalled"] = [
        Stretch(3.5 * HOUR, TrainingLoop("gpujobstalled")),
        Stretch(0.2 * HOUR, by_name("GpuJobStalled").inject.series),
        Stretch(0.3 * HOUR, TrainingLoop("gpujobstalled")),
    ]
    stories["healthy"] = [Stretch(4 * HOUR, TrainingLoop("healthy"))]
    fires = [fired(mode.name.lower(), mode.name) for mode in modes]
    jobs(tmp_path, stories, *fires, fired("healthy"), interval=COARSE)


def test_mfu_that_drops_for_hours(tmp_path: Path) -> None:
    """Goodput is still more than three quarters, so MFU alone says it."""
    mode = by_name("GpuJobMfuDropped")
    jobs(
        tmp_path,
        {"gpujobmfudropped": injected(mode, 7 * HOUR, 7 * HOUR)},
        fired("gpujobmfudropped", mode.name),
        interval=COARSE,
    )


def by_name(name: str) -> FailureMode:
    (mode,) = (mode for mode in loops.MODES if mode.name == name)
    return mode


STALLED = 'group by (job_id) (ALERTS{alertstate="firing", alertname="GpuJobStalled"})'


@dataclass(frozen=True)
class AtTimes:
    """A case whose results are expected at several times, in seconds."""

    case: Case
    expected: Mapping[float, Expect]

    @property
    def name(self) -> str:
        """Return its name."""
        return self.case.name

    def rendered(self) -> Mapping[str, Any]:
        """Return it in promtool's format."""
        tests = [expect.rendered(int(at)) for at, expect in self.expected.items()]
        return {**self.case.rendered(), "promql_expr_test": tests}


@pytest.mark.parametrize("step", [STEP_SECONDS, 20.0])
def test_a_stall_is_noticed_within_three_steps_and_a_minute(tmp_path: Path, step: float) -> None:
    """And not before three steps are over."""
    speed, last = STEP_SECONDS / step, 20 * 60.0
    story = [Stretch(20, TrainingLoop("job", speed=speed)), Stretch(5, TrainingLoop("job", speed=speed, since=last))]
    expected = {last + 3 * step: Expect(STALLED), last + 3 * step + 60: Expect(STALLED, [({"job_id": "job"}, 1.0)])}
    case = AtTimes(Case("stall", devices("job", story), [], more=series("job", story)), expected)
    check(tmp_path, [case], rules=rules(tmp_path), interval="10s")


CHECKPOINTS, BETWEEN = 3, 12.0


def with_checkpoints(name: str) -> Story:
    """Return the story of a job that does not say that it saves a checkpoint, which takes a minute and a half."""
    trains, story = TrainingLoop(name), list[Stretch]()
    saves = {key: Ramp(value.start, 0.0) if isinstance(value, Ramp) else value for key, value in trains.items()}
    long = r'step_seconds_bucket.*le="(160|600|\\+Inf)'
    for _ in range(CHECKPOINTS):
        story += [
            Stretch(BETWEEN - 2, trains),
            Stretch(1.5, saves),
            Stretch(0.5, changed(trains, long, Ramp(0.0, 3.0))),
        ]
    return story


def test_pauses_are_no_stalls(tmp_path: Path) -> None:
    """Neither when all ranks pause nor when one does; and the first step after the pause may take its time."""
    trains = TrainingLoop("all"), TrainingLoop("one")
    stories = {
        "all": [Stretch(20, trains[0]), Stretch(30, paused(trains[0])), Stretch(10, trains[0])],
        "one": [Stretch(20, trains[1]), Stretch(30, paused(trains[1], "checkpoint", "0")), Stretch(10, trains[1])],
    }
    jobs(tmp_path, stories, fired("all"), fired("one"), interval="10s")


def test_an_unmarked_pause_is_reported_once(tmp_path: Path) -> None:
    """Then it is known that steps may take that long."""
    story = with_checkpoints("job")
    case = Case("unmarked", devices("job", story), [], more=series("job", story))
    ever = 'group by (job_id) (max_over_time(ALERTS{alertstate="firing", alertname="GpuJobStalled"}[10m]))'
    expected = {
        (BETWEEN + 1) * 60: Expect(ever, [({"job_id": "job"}, 1.0)]),
        CHECKPOINTS * BETWEEN * 60 - 30: Expect(ever),
    }
    check(tmp_path, [AtTimes(case, expected)], rules=rules(tmp_path), interval="10s")


def unmarked(name: str, minutes: float) -> Story:
    """Return the story of a job with an unmarked pause: its first step afterwards has the length of the pause."""
    trains = TrainingLoop(name)
    still = {key: Ramp(value.start, 0.0) if isinstance(value, Ramp) else value for key, value in trains.items()}
    lump = Ramp(0.0, 1 + minutes / 0.5)
    step = changed(trains, r'activity_seconds_total.*"training"|step_seconds_sum', lump)
    return [Stretch(2 * HOUR, trains), Stretch(minutes, still), Stretch(0.5, step), Stretch(HOUR - 0.5, trains)]


@pytest.mark.parametrize("minutes", [4.0, 7.0, 15.0])
def test_a_job_that_trains_again_is_not_slower(tmp_path: Path, minutes: float) -> None:
    """Although all of the pause arrives in `training` at once, at its end."""
    slower = Expect('ALERTS{alertstate="firing", alertname="GpuJobSlower"}')
    ever = Expect('last_over_time(ALERTS{alertstate="firing", alertname="GpuJobSlower"}[1d])')
    jobs(tmp_path, {"paused": unmarked("paused", minutes)}, slower, ever)


def test_an_evaluation_in_several_hours_is_no_alert(tmp_path: Path) -> None:
    """20 minutes of 180, which are a third of the hour around it; an hour of 180 is too much."""
    stories = {
        name: [Stretch(3 * HOUR - minutes, trains), Stretch(minutes, paused(trains))] * 3
        for name, minutes, trains in (
            ("seldom", 20, TrainingLoop("seldom")),
            ("often", 60, TrainingLoop("often")),
        )
    }
    jobs(tmp_path, stories, fired("seldom"), fired("often", "GpuJobGoodputLow"), interval=COARSE)


def test_an_exporter_that_restarts_makes_no_lost_time(tmp_path: Path) -> None:
    """It has lost the sums of processes that had ended, and shows the start of the one that runs."""
    trains, hour = TrainingLoop("job"), HOUR * 60
    later: Loop = {key: Ramp(0.0, each.per_second) if isinstance(each, Ramp) else each for key, each in trains.items()}
    later = changed(later, m.JOB_STEPPED_AT.name, Ramp(2 * hour, 1.0))
    later = changed(later, m.JOB_STARTED_AT.name, 1.5 * hour)
    before, after = (series("job", [Stretch(length * HOUR, said)]) for length, said in ((2, trains), (0.9, later)))
    said = [{**one, "values": f"{one['values']} {other['values']}"} for one, other in zip(before, after, strict=True)]
    gpus = devices("job", [Stretch(2.9 * HOUR, trains)])
    check(tmp_path, [Case("jobs", gpus, [fired("job")], more=said)], rules=rules(tmp_path), interval=COARSE)


def stragglers(job: str, *ranks: int) -> Expect:
    """Expect that exactly these ranks are stragglers of a job at the end."""
    alert = f'ALERTS{{alertstate="firing", alertname="GpuJobStraggler", workload="{job}"}}'
    return Expect(
        f"group by (rank, gpu, node) ({alert})",
        [({"rank": str(rank), "gpu": str(rank), "node": job}, 1.0) for rank in ranks],
    )


def rank_of(number: int) -> str:
    """Return the pattern of the self time of a rank."""
    return rf'self_seconds_sum{{.*rank="{number}"'


SHORT = 20.0


def test_stragglers_by_self_time(tmp_path: Path) -> None:
    """Of four or more ranks; ranks that differ a little, or evenly, or by less than 5 % of a step, are none."""
    even: Loop = TrainingLoop("even")
    for number in range(4):
        even = scaled(even, rank_of(number), 1 + 0.05 * number)
    noisy: Loop = TrainingLoop("noisy", own=1.05)
    for number in range(4):
        noisy = scaled(noisy, rank_of(number), 1 + 0.002 * (number % 3))
    cheap = scaled(TrainingLoop("cheap", own=1.5), "self_seconds_sum", 0.1)
    two = scaled(TrainingLoop("two", own=1.3, ranks=6), rank_of(0), 1.2)
    stories = {
        name: [Stretch(SHORT, said)]
        for name, said in {
            "one": TrainingLoop("one", own=1.2),
            "two": two,
            "even": even,
            "noisy": noisy,
            "cheap": cheap,
        }.items()
    }
    jobs(
        tmp_path,
        stories,
        stragglers("one", 3),
        stragglers("two", 0, 5),
        *map(stragglers, ("even", "noisy", "cheap")),
        ranks=6,
    )


def test_stragglers_by_measured_times(tmp_path: Path) -> None:
    """Where the GPU measures self times, one that stands out is named. In a launch-bound job, one is always last."""
    stories = {name: [Stretch(SHORT, of_shares(name, own, waits))] for name, (own, waits, _) in MEASURED.items()}
    jobs(tmp_path, stories, *(stragglers(name, *slow) for name, (_, _, slow) in MEASURED.items()), ranks=4)


def test_rare_long_steps_do_not_hide_that_a_job_is_launch_bound(tmp_path: Path) -> None:
    """Nor are they the phase that takes longer: they are no part of the self time."""
    shares = {"without": 0.0, "with": LONG_SHARE}
    loops = {name: with_long_steps(of_shares(name, *WITH_LONG_STEPS), share) for name, share in shares.items()}
    loops["with"] = changed(loops["with"], 'rank="1".*phase="long_steps"', Ramp(0.0, 0.45))
    excess = Expect('count by (phase) (rank:phase_excess:seconds{phase="long_steps"})')
    stories = {name: [Stretch(SHORT, loop)] for name, loop in loops.items()}
    jobs(tmp_path, stories, stragglers("without", 1), stragglers("with"), excess, ranks=2)


@pytest.mark.parametrize("ranks", [2, 3])
def test_stragglers_of_a_few_ranks(tmp_path: Path, ranks: int) -> None:
    """By their ratio to the fastest rank, if CPUs measure: they differ by chance."""
    stories = {
        "slow": [Stretch(SHORT, TrainingLoop("slow", ranks=ranks, own=1.4, clock=""))],
        "alike": [Stretch(SHORT, TrainingLoop("alike", ranks=ranks, own=1.15, clock=""))],
    }
    jobs(tmp_path, stories, stragglers("slow", ranks - 1), stragglers("alike"), ranks=ranks)


@pytest.mark.parametrize(("share", "slow"), [(0.1, (2,)), (0.5, ())])
def test_where_steps_differ_much_a_few_make_no_straggler(tmp_path: Path, share: float, slow: Sequence[int]) -> None:
    """Steps of ten seconds: of 30 in five minutes, some are longer by chance."""
    loop = varied(TrainingLoop("job", ranks=3, own=1.4, speed=0.05), share)
    jobs(tmp_path, {"job": [Stretch(SHORT, loop)]}, stragglers("job", *slow), ranks=3)


def test_one_rank_has_no_straggler(tmp_path: Path) -> None:
    jobs(tmp_path, {"alone": [Stretch(SHORT, TrainingLoop("alone", ranks=1, own=2))]}, stragglers("alone"), ranks=1)


def test_an_evaluation_of_rank_0_makes_no_straggler(tmp_path: Path) -> None:
    """The other rank of two waits for it outside of what it measures as waiting."""
    one = TrainingLoop("uneven", ranks=2, own=1.5)
    evaluates = changed(one, r'rank="0".*activity="evaluation"', Ramp(0.0, 0.3))
    both = changed(TrainingLoop("both", ranks=2, own=1.5), r'seconds_total{.*activity="evaluation"', Ramp(0.0, 0.3))
    stories = {"uneven": [Stretch(SHORT, evaluates)], "both": [Stretch(SHORT, both)]}
    jobs(tmp_path, stories, stragglers("uneven"), stragglers("both", 1), ranks=2)


def _scraped(key: str) -> str:
    return key.replace("{", '{job="gpu-exporter",instance="offset:9400",', 1)


@dataclass(frozen=True)
class Offset:
    """A job whose ranks are scraped every 30 s, those with an odd number 10 s after the others."""

    story: Story
    expected: Sequence[Expect]
    name = "offset"

    def rendered(self) -> Mapping[str, Any]:
        """Return it in promtool's format, with a value every 10 s."""
        whole = sum(stretch.minutes for stretch in self.story)
        gpus = [Device("offset", gpu, [minutes(whole * 3, BUSY)], owner=rank("offset", gpu)) for gpu in range(4)]
        said = [{"series": _scraped(key), "values": self._values(key)} for key in self.story[0].loop]
        tests = [each.rendered(round(whole * 60) - 10) for each in self.expected]
        return {"interval": "10s", "input_series": [*input_series(gpus), *said], "promql_expr_test": tests}

    def _values(self, key: str) -> str:
        """Return the values of a counter, or of anything else at its start, at the scrapes of its rank."""
        texts, total = list[str](), 0.0
        slot = int('rank="1"' in key or 'rank="3"' in key)
        for stretch in self.story:
            value = stretch.loop[key]
            start, slope = (total, value.per_second) if isinstance(value, Ramp) else (value, 0.0)
            ticks = range(round(stretch.minutes * 6))
            texts += [f"{start + 10 * tick * slope:g}" if tick % 3 == slot else "_" for tick in ticks]
            total += 10 * len(ticks) * slope
        return " ".join(texts)


@pytest.mark.parametrize("own", [1.15, 1.0])
def test_ranks_that_are_scraped_at_different_moments(tmp_path: Path, own: float) -> None:
    """An evaluation begins earlier in the scrapes of some ranks. A straggler stays one, and nobody becomes one."""
    trains = TrainingLoop("offset", own=own)
    story = [Stretch(40, trains), Stretch(12, paused(trains)), Stretch(40, trains)]
    fires = 'ALERTS{alertstate="firing", alertname="GpuJobStraggler"}'
    always = Expect(
        f"max_over_time(absent({fires})[1h:1m])",
        [] if own > 1 else [({"alertname": "GpuJobStraggler", "alertstate": "firing"}, 1.0)],
    )
    ranks = [({"rank": "3"}, 1.0)] if own > 1 else []
    ever = Expect(f"group by (rank) (last_over_time({fires}[1d]))", ranks)
    check(tmp_path, [Offset(story, [always, ever])], rules=rules(tmp_path))


def test_another_batch_size_is_not_slower(tmp_path: Path) -> None:
    """Steps take twice as long with the same number of tokens per second, on half of the ranks."""
    before, after = TrainingLoop("batch"), scaled(TrainingLoop("batch", speed=0.5), "tokens|flops", 2)
    half = {key: value for key, value in after.items() if 'rank="2"' not in key and 'rank="3"' not in key}
    stories = {
        "batch": [Stretch(2 * HOUR, before), Stretch(0.7 * HOUR, half)],
        "evaluates": [
            Stretch(2 * HOUR, TrainingLoop("evaluates")),
            Stretch(0.7 * HOUR, TrainingLoop("evaluates", trains=0.7)),
        ],
    }
    jobs(tmp_path, stories, fired("batch"), fired("evaluates"))


def test_jobs_of_one_name_are_kept_apart(tmp_path: Path) -> None:
    """Programs of two teams may have the same name. Their ranks are not compared."""
    usual = {key.replace('job_id="slow"', 'job_id="train.py"'): value for key, value in TrainingLoop("slow").items()}
    slow = scaled(usual, "self_seconds_sum", 1.2)
    fast = {key.replace('job_id="fast"', 'job_id="train.py"'): value for key, value in TrainingLoop("fast").items()}
    jobs(
        tmp_path,
        {"slow": [Stretch(SHORT, slow)], "fast": [Stretch(SHORT, fast)]},
        stragglers("slow"),
        stragglers("fast"),
        Expect("count by (workload) (job:step:seconds)", [({"workload": "slow"}, 1.0), ({"workload": "fast"}, 1.0)]),
    )


def test_what_is_recorded(tmp_path: Path) -> None:
    """Of the last minutes, by job."""
    story = [Stretch(2 * HOUR, TrainingLoop("job", trains=0.8))]
    values = {
        "job:ranks:count": 4,
        "job:step:seconds": 0.5,
        "job:tokens:per_second": 25600,
        "job:speed:per_second": 8000,
        "job:mfu:ratio": 0.32,
        'job:time:ratio{activity="evaluation"}': 0.2,
        'job:lost:ratio{activity="evaluation"}': 0.2,
        'job:phase:ratio{phase="backward"}': 0.45,
        'job:phase:ratio{phase="data"}': 0.02,
        "job:million_tokens:usd": 4 * 2.5 / (25600 * 3600 / 1e6),
    }
    rounded = [
        Expect(f"round(sum by (job_id) ({name}), 0.0001)", [({"job_id": "job"}, round(value, 4))])
        for name, value in values.items()
    ]
    jobs(tmp_path, {"job": story}, *rounded, Expect("count(job:goodput:ratio < 0.83 > 0.79)", [({}, 1.0)]))


def test_without_loops_nothing_is_recorded(tmp_path: Path) -> None:
    gpus = [Device("plain", gpu, [minutes(20, BUSY)], owner=rank("plain", gpu)) for gpu in range(2)]
    check(tmp_path, [Case("plain", gpus, [Expect('{__name__=~"(rank|job):.*"}')])], rules=RULES)
