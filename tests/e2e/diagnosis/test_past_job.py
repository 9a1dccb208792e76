"""The history of a job of 64 ranks on 8 nodes, with a straggler, a lost GPU and a restart, from what each node kept."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.failure_modes import profiles
from gpu_exporter.diagnosis import job_report
from gpu_exporter.diagnosis.job_history import NodeHistory, PastJob, job_history
from gpu_exporter.diagnosis.kept_history import KeptHistory
from gpu_exporter.diagnosis.rolling import Watch
from gpu_exporter.diagnosis.window import Scrapes
from gpu_exporter.io.decoding import json_as
from gpu_exporter.model.gpu import Gpu, Sample, Series
from gpu_exporter.model.metric import Metric
from gpu_exporter.model.snapshot import GpuStatus, Snapshot
from gpu_exporter.reports.masking import Names
from tests import ROOT
from tests.support.answering import answering
from tests.support.prometheus import scraping
from tests.support.shared import made_once
from tests.support.tools import tool

# 80 minutes of eight nodes are judged.
pytestmark = pytest.mark.slow

BEGIN = 1_780_000_000.0
MINUTE = 60.0
NODES, GPUS = 8, 8
STRAGGLER, LOST = (3, 5), (6, 2)
STEP = 2.0


def load(node: int, gpu: int, minute: float) -> Mapping[Metric, float] | None:
    """Return what a GPU does: 20 minutes of a straggler, a lost GPU for 10 minutes, a restart after 5; None if lost."""
    if 10 <= minute < 30:
        return profiles.STARVED if (node, gpu) == STRAGGLER else profiles.OF_STARVED
    if 45 <= minute < 55:
        return None if (node, gpu) == LOST else profiles.HANGING
    return profiles.IDLE if 55 <= minute < 60 or minute >= 75 else profiles.BALANCED


class SimulatedNode:
    """A node whose exporter judges it every 30 s, as when nobody looks at its page."""

    def __init__(self, number: int, kept: KeptHistory) -> None:
        self.number, self.kept, self._watch = number, kept, Watch()
        self.gpus = [Gpu(index, f"GPU-{number}-{index}", model="NVIDIA H200") for index in range(GPUS)]
        self._steps, self._own, self._series = 0.0, defaultdict[int, float](float), dict[tuple[object, ...], Series]()

    def _sample(
        self, metric: Metric, gpu: Gpu, labels: tuple[tuple[str, str], ...], value: float, part: str = ""
    ) -> Sample:
        key = (metric, gpu, labels, part)
        return Sample(self._series.setdefault(key, Series(metric, gpu, labels, part)), value)

    def snapshot(self, seconds: float) -> Snapshot:
        """Return what is collected at a time."""
        minute, samples, statuses = seconds / MINUTE, [], []
        runs = minute < 55 or 60 <= minute < 75
        if runs and not 45 <= minute < 55:
            self._steps += 10 / STEP
            for gpu in self.gpus:
                is_slow = (self.number, gpu.index) == STRAGGLER and 10 <= minute < 30
                self._own[gpu.index] += (1.6 if is_slow else 1.0) * 10 / STEP
        for gpu in self.gpus:
            values = load(self.number, gpu.index, minute)
            statuses.append(GpuStatus(gpu, values is not None, "" if values else "gpu_lost"))
            samples.append(self._sample(m.UP, gpu, (), float(values is not None)))
            if values is None:
                samples.append(self._sample(m.DOWN, gpu, (("reason", "gpu_lost"),), 1.0))
                continue
            samples += [self._sample(metric, gpu, (), value) for metric, value in values.items()]
            if runs:
                rank = self.number * GPUS + gpu.index
                who = (("job_id", "llm-7b"), ("rank", str(rank)))
                pod = (("namespace", "ml"), ("pod", f"train-{rank}"), ("workload", "train"))
                samples += [
                    self._sample(m.POD_INFO, gpu, pod, 1.0),
                    self._sample(m.JOB_RANK_INFO, gpu, who, 1.0),
                    self._sample(m.JOB_STEP, gpu, who, self._steps, "_count"),
                    self._sample(m.JOB_STEP, gpu, who, self._steps * STEP, "_sum"),
                    self._sample(m.JOB_SELF, gpu, who, self._steps, "_count"),
                    self._sample(m.JOB_SELF, gpu, who, self._own[gpu.index], "_sum"),
                    self._sample(m.JOB_ACTIVITY, gpu, (*who, ("activity", "training")), self._steps * STEP),
                ]
        return Snapshot(BEGIN + seconds, "nvml", tuple(samples), tuple(statuses))

    def run(self, minutes: float) -> None:
        """Live through so many minutes."""
        seconds = 0.0
        while seconds <= minutes * MINUTE:
            taken = self.snapshot(seconds)
            self._watch.take(taken)
            if seconds % 30 == 0:
                self._watch.judge(taken)
                self.kept.take(self._watch.current, taken)
                self.kept._wait()
            seconds += 10


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Sequence[NodeHistory]:
    """The answers of all nodes, an hour after the end of the job, as JSON that was decoded."""

    def judge(folder: Path) -> None:
        for number in range(NODES):
            state = folder / f"state-{number}"
            state.mkdir()
            node = SimulatedNode(number, KeptHistory(state))
            node.run(80)
            node.kept.close()
            body = KeptHistory(state).answer(f"node-{number}", BEGIN - 7200, BEGIN + 8400, Names(mask=False))
            (folder / f"{number}.json").write_bytes(body)

    folder = made_once(tmp_path_factory, "past-job", judge)
    return [json_as(NodeHistory, (folder / f"{number}.json").read_bytes()) for number in range(NODES)]


def past_job(nodes: Sequence[NodeHistory], job: str = "ml/train", missing: Sequence[str] = ()) -> PastJob:
    """Return what the nodes say about a job."""
    return job_history(job, BEGIN - 7200, BEGIN + 8400, nodes, missing)


def urgent(history: PastJob) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return the causes of incidents that are more than info, with their culprits."""
    return [
        (each.cause, [(gpu["node"], gpu["gpu"]) for gpu in each.culprits])
        for each in history.incidents
        if each.severity != "info"
    ]


def test_the_incidents_of_all_nodes_in_order(nodes: Sequence[NodeHistory]) -> None:
    straggler, lost = [each for each in past_job(nodes).incidents if each.severity != "info"]
    assert urgent(past_job(nodes)) == [("GpuJobStraggler", [("node-3", "5")]), ("GpuLost", [("node-6", "2")])]
    assert "GpuStragglerStarved" in straggler.explains
    assert straggler.start == pytest.approx(BEGIN + 10 * MINUTE, abs=60)
    assert straggler.end == pytest.approx(BEGIN + 30 * MINUTE, abs=60)
    assert len(straggler.hit) == 63
    assert lost.start == pytest.approx(BEGIN + 45 * MINUTE, abs=60)
    assert lost.end == pytest.approx(BEGIN + 55 * MINUTE, abs=60)


def test_where_the_time_went(nodes: Sequence[NodeHistory]) -> None:
    history = past_job(nodes)
    assert len(history.ranks) == 64
    assert history.seconds / 64 == pytest.approx(70 * MINUTE, rel=0.05)
    assert sum(history.time.values()) == pytest.approx(history.seconds, rel=0.03)
    assert history.goodput == pytest.approx(60 / 75, abs=0.05)
    assert [(rank.node, rank.gpu) for rank in history.ranks if rank.excess] == [("node-3", "5")]


@pytest.mark.parametrize("name", ["train", "ml/train", "llm-7b"])
def test_a_job_has_several_names(nodes: Sequence[NodeHistory], name: str) -> None:
    assert urgent(past_job(nodes, name)) == urgent(past_job(nodes))
    assert len(past_job(nodes, name).ranks) == 64


def test_text_json_and_page(nodes: Sequence[NodeHistory]) -> None:
    text = "\n".join(job_report.lines(past_job(nodes), 2.0))
    assert "Job ml/train: 64 GPUs on 8 nodes" in text
    assert "culprit: GPU 5 on node-3" in text
    assert "Straggler: rank 29 on node-3 GPU 5" in text
    assert "USD" in text
    found = json.loads(json.dumps(job_report.as_json(past_job(nodes), 2.0)))
    # 0.6 s more in 20 of 60 minutes.
    assert found["ranks"][29]["excess_seconds"] == pytest.approx(0.2, abs=0.01)
    assert found["ranks"][29]["straggler_seconds"] == pytest.approx(20 * MINUTE, abs=60)
    page = job_report.page(past_job(nodes))
    assert "GpuStragglerStarved" in page
    assert "<script>" not in page


def test_what_is_missing_is_said(nodes: Sequence[NodeHistory]) -> None:
    others = [*nodes[:2], replace(nodes[2], version="9.9", ahead=40.0), replace(nodes[4], ahead=-2.0)]
    remarks = past_job(others, missing=["missing: http://node-3: nothing listens there"]).remarks
    text = "\n".join(remarks)
    assert "missing: http://node-3" in text
    assert "9.9: node-2" in text
    assert "the clock of node-2 is 40 s ahead of" in text
    assert "node-4" not in text.partition("clock")[2]
    assert "nothing is known of ranks 24-31" in text


def test_names_can_be_masked(nodes: Sequence[NodeHistory]) -> None:
    from gpu_exporter.diagnosis.kept_records import masked_job
    from gpu_exporter.diagnosis.masking import DiagnosisNames

    names = DiagnosisNames(mask=True)
    page = job_report.page(past_job([node.masked(names) for node in nodes], masked_job("ml/train", names)))
    assert "GpuStragglerStarved" in page
    assert not [name for name in ("node-3", "GPU-3-5", "ml/train", "llm-7b") if name in page]


def blocks(folder: Path) -> None:
    """Write what a Prometheus scrapes of the job every 30 s, at other times from each node."""
    by_name: dict[str, list[str]] = defaultdict(list)
    for number in range(NODES):
        node, scrapes = SimulatedNode(number, KeptHistory()), Scrapes()
        for seconds in range(number, 80 * 60, 10):
            taken = node.snapshot(seconds)
            if seconds % 30 == number:
                for name, labels, value in scrapes.of(taken).samples:
                    texts = ",".join(f'{label}="{text}"' for label, text in labels.items() if text)
                    by_name[name].append(f'{name}{{{texts},Hostname="node-{number}"}} {value!r} {taken.at:.3f}')
    lines = [line for name, own in by_name.items() for line in (f"# TYPE {name} gauge", *own)]
    (folder / "job.om").write_text("\n".join([*lines, "# EOF\n"]))
    arguments = ["tsdb", "create-blocks-from", "openmetrics", str(folder / "job.om"), str(folder / "data")]
    subprocess.run([tool("promtool"), *arguments], check=True, capture_output=True, text=True)


def test_a_prometheus_says_the_same(nodes: Sequence[NodeHistory], tmp_path: Path) -> None:
    """A real Prometheus with the same scrapes, and without rules: the same incidents and the same time."""
    blocks(tmp_path)
    options = ["--storage.tsdb.retention.time=100y"]
    with scraping(tmp_path, "30s", {"static_configs": []}, options=options) as prometheus:
        url = f"http://127.0.0.1:{prometheus.port}"
        code, text, problems = diagnosed("--job", "train", "--url", url, *PERIOD, "--json")
        assert code == 1, problems
        nothing = diagnosed("--job", "nosuch", "--url", url, *PERIOD)
    found, expected = json.loads(text), past_job(nodes)
    incidents = [each for each in found["incidents"] if each["severity"] != "info"]
    assert [(each["cause"], [(gpu["node"], gpu["gpu"]) for gpu in each["culprits"]]) for each in incidents] == urgent(
        expected
    )
    for here, there in zip(incidents, [each for each in expected.incidents if each.severity != "info"], strict=True):
        assert here["start"] == pytest.approx(there.start, abs=120)
        assert here["end"] == pytest.approx(there.end, abs=120)
        assert len(here["hit"]) == len(there.hit)
        assert here["lost_gpu_hours"] == pytest.approx(there.lost_gpu_hours, rel=0.15)
    assert len(found["ranks"]) == 64
    assert found["goodput"] == pytest.approx(expected.goodput, abs=0.05)
    assert nothing[0] == 2
    assert nothing[2].count("\n") == 1


@pytest.fixture
def exporters(nodes: Sequence[NodeHistory]) -> Iterator[Sequence[str]]:
    """The URLs of exporters that answer with the histories of the nodes; the last one is not there."""
    with ExitStack() as stack:
        urls = [stack.enter_context(answering(partial(_answer, node))) for node in nodes[:-1]]
        yield [*urls, "http://127.0.0.1:9"]


def _answer(node: NodeHistory, path: str) -> tuple[int, bytes]:
    incidents, usage = ([each.as_dict() for each in of_node] for of_node in (node.incidents, node.usage))
    answer = {"node": node.node, "version": node.version, "kept": True, "now": time.time()}
    return 200, json.dumps({**answer, "incidents": incidents, "usage": usage}).encode()


def diagnosed(*arguments: str) -> tuple[int, str, str]:
    """Return the exit code, stdout and stderr of `diagnose` with these arguments."""
    command = [sys.executable, "-m", "gpu_exporter", "diagnose", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    return done.returncode, done.stdout, done.stderr


PERIOD = ("--from", f"{BEGIN - 7200:.0f}", "--to", f"{BEGIN + 8400:.0f}")


def test_the_command(exporters: Sequence[str], tmp_path: Path) -> None:
    urls = [argument for url in exporters for argument in ("--url", url)]
    report = tmp_path / "job.html"
    code, text, problems = diagnosed("--job", "train", *urls, *PERIOD, "--report", str(report))
    assert code == 1, problems
    assert "Incident (critical): GPU 2 does not answer" in text
    assert "culprit: GPU 2 on node-6" in text
    assert "Note: missing: http://127.0.0.1:9: nothing listens there" in text
    assert "GpuLost" in report.read_text()
    found = json.loads(diagnosed("--job", "train", *urls, *PERIOD, "--json")[1])
    assert [each["cause"] for each in found["incidents"] if each["severity"] != "info"] == [
        "GpuJobStraggler",
        "GpuLost",
    ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--job", "nosuch", *PERIOD), "nothing was recorded of job nosuch from 2026-"),
        (("--job", "train", "--since", "1m"), "nothing was recorded of job train"),
        (("--job", "train", "--from", "1h", "--to", "2h"), "--from: '1h' is not before '2h'"),
        (("--job", "train", "--since", "soon"), "--since: 'soon' is not a time"),
        (("--job", "train", "--since", "1h", "--from", "2h"), "--since and --from exclude each other"),
        (("--job", "train", "--for", "1m"), "--for and --job exclude each other"),
        (("--job", "train", "--nodes", "a[3-1]"), "--nodes: give one --url with {node} in it"),
        (("--since", "1h"), "name it with --job"),
    ],
)
def test_bad_input(exporters: Sequence[str], arguments: Sequence[str], words: str) -> None:
    # The node answers with all it has, whatever the period: only the first rows reach it.
    url = exporters[0] if "1m" not in arguments or "--for" in arguments else exporters[-1]
    code, text, problems = diagnosed(*arguments, "--url", url)
    assert (code, text) == (2, "")
    assert problems.count("\n") == 1
    expected = words if url == exporters[0] else "http://127.0.0.1:9: nothing listens there"
    assert expected in problems
