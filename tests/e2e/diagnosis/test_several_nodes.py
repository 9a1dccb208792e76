"""`diagnose` of the exporters of several nodes: one job over all of them, and what is doubtful about the nodes."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.failure_modes import profiles
from gpu_exporter.catalogue.failure_modes.mode import Ramp
from gpu_exporter.config import Config
from gpu_exporter.diagnosis import gather, html_page, report, terminal_report
from gpu_exporter.diagnosis.request import DiagnosisRequest, diagnose_request
from gpu_exporter.diagnosis.result import DiagnosisResult
from gpu_exporter.http.client import Remote
from gpu_exporter.model.errors import GpuExporterError
from gpu_exporter.model.metric import Metric
from tests.support.answering import answering

BEGIN = 1_780_000_000.0
SCRAPES, GPUS, STEP = 25, 4, 0.5
Load = Mapping[Metric, "float | Ramp"]


@dataclass
class SimulatedExporter:
    """The pages of a node, one second after the other. `own` is the self time of a step by rank, `stands_since` the
    seconds for which no step has ended, and `ahead` by how much its clock differs."""

    number: int
    load: Callable[[int], Load] = lambda rank: profiles.BALANCED
    own: Mapping[int, float] = field(default_factory=dict)
    stands_since: float | None = None
    ahead: float = 0.0
    version: str = "1.0"
    pods: bool = True
    job: str = "llm-7b"
    loops: bool = True
    further: Sequence[str] = ()
    answers: int = SCRAPES + 5
    scrapes: int = 0

    def page(self) -> str:
        """Return the next page."""
        self.scrapes += 1
        now, lines = BEGIN + self.scrapes + self.ahead, []
        for gpu in range(GPUS):
            rank = self.number * GPUS + gpu
            device = f'gpu="{gpu}",UUID="GPU-{self.number}-{gpu}"'
            lines.append(f'{m.UP}{{{device},Hostname="node-{self.number}",modelName="NVIDIA H200"}} 1')
            for metric, value in self.load(rank).items():
                number = value.start + value.per_second * (100 + self.scrapes) if isinstance(value, Ramp) else value
                labels = "".join(f',{name}="{text}"' for name, text in metric.labels)
                lines.append(f'{metric}{{{device},Hostname="node-{self.number}"{labels}}} {number}')
            if self.pods:
                lines.append(f'{m.POD_INFO}{{{device},namespace="ml",pod="train-{rank}",workload="train"}} 1')
            if not self.loops:
                continue
            loop = f'{{{device},job_id="{self.job}",rank="{rank}"}}'
            steps = 1000.0 if self.stands_since is not None else 1000 + self.scrapes / STEP
            lines += [
                f"{m.JOB_RANK_INFO}{loop} 1",
                f"{m.JOB_STEP}_count{loop} {steps}",
                f"{m.JOB_STEP}_sum{loop} {steps * STEP}",
                f"{m.JOB_SELF}_count{loop} {steps}",
                f"{m.JOB_SELF}_sum{loop} {steps * self.own.get(rank, 0.4)}",
                f"{m.JOB_STEPPED_AT}{loop} {now - (self.stands_since or 0.2):.3f}",
            ]
        lines += [f'{m.RENDERED_AT}{{source="nvml"}} {now:.3f}', f'{m.BUILD_INFO}{{version="{self.version}"}} 1']
        return "\n".join([*lines, *self.further, ""])


def answer(exporter: SimulatedExporter, path: str) -> tuple[int, bytes]:
    if path != "/metrics":
        return 404, b""
    return (200, exporter.page().encode()) if exporter.scrapes < exporter.answers else (503, b"")


@pytest.fixture
def diagnosed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., DiagnosisResult]]:
    """Return what serves exporters, and diagnoses them with other URLs once each has given SCRAPES pages."""
    monkeypatch.setattr(gather, "TICK_SECONDS", 0.01)
    with ExitStack() as stack:

        def run(*exporters: SimulatedExporter, urls: Sequence[str] = (), **options: Any) -> DiagnosisResult:
            remotes = [Remote(url) for url in urls]
            for exporter in exporters:
                remotes.append(Remote(stack.enter_context(answering(partial(answer, exporter)))))
            monkeypatch.setattr("time.time", lambda: BEGIN + max((each.scrapes for each in exporters), default=0))
            stop = threading.Event()
            threading.Thread(target=watch, args=(exporters, stop), daemon=True).start()
            request = DiagnosisRequest(Config(), nodes=remotes, seconds=60.0, **options)
            return diagnose_request(request, stop, threading.Event())

        yield run


def watch(exporters: Sequence[SimulatedExporter], stop: threading.Event) -> None:
    while any(each.scrapes < min(SCRAPES, each.answers) for each in exporters):
        time.sleep(0.01)
    stop.set()


def found(result: DiagnosisResult) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(json.dumps(report.as_json(result)))
    return loaded


def urgent(result: DiagnosisResult) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return the causes of incidents that are more than info, with their culprits."""
    return [
        (each["cause"], [(gpu["node"], gpu["gpu"]) for gpu in each["culprits"]])
        for each in found(result)["incidents"]
        if each["severity"] != "info"
    ]


Diagnosed = Callable[..., DiagnosisResult]
STRAGGLER = {5: 0.48}


@pytest.mark.parametrize("pods", [True, False])
@pytest.mark.parametrize("ahead", [0.0, 40.0, -300.0])
def test_the_straggler_is_named_with_its_node(diagnosed: Diagnosed, pods: bool, ahead: float) -> None:
    """Also where clocks differ, which is said."""
    nodes = [SimulatedExporter(number, own=STRAGGLER, pods=pods, ahead=ahead * number) for number in range(2)]
    result = diagnosed(*nodes)
    assert urgent(result) == [("GpuJobStraggler", [("node-1", "1")])]
    (job,) = found(result)["jobs"]
    assert job["job"] == ("ml/train" if pods else "llm-7b")
    assert [(rank["rank"], rank["node"], rank["gpu"]) for rank in job["ranks"]] == [
        (str(rank), f"node-{rank // GPUS}", str(rank % GPUS)) for rank in range(8)
    ]
    assert [rank["rank"] for rank in job["ranks"] if rank.get("state") == "holds up the job"] == ["5"]
    assert job["ranks"][5]["self_seconds"] == pytest.approx(0.48)
    assert job["ranks"][5]["excess_seconds"] == pytest.approx(0.08)
    assert job["ranks"][0]["step_seconds"] == pytest.approx(STEP)
    clocks = [note for note in found(result)["notes"] if "clock" in note]
    side = "(40|39) s ahead of" if ahead > 0 else "(300|301) s behind"
    said = rf"the clock of node-1 is {side} this machine's: its times are corrected"
    assert [bool(re.fullmatch(said, note)) for note in clocks] == ([True] if ahead else [])


def test_a_hang_of_a_job_over_two_nodes(diagnosed: Diagnosed) -> None:
    def load(rank: int) -> Load:
        return profiles.ABSENT if rank == 6 else profiles.HANGING

    result = diagnosed(*(SimulatedExporter(number, load, stands_since=300.0) for number in range(2)))
    causes = dict(urgent(result))
    assert "GpuJobStalled" in causes or "GpuCollectiveStall" in causes
    (job,) = found(result)["jobs"]
    assert [rank["rank"] for rank in job["ranks"] if rank.get("state") == "holds up the job"] == ["6"]
    assert sum(rank.get("state") == "waits" for rank in job["ranks"]) == 7


def test_links_between_the_nodes(diagnosed: Diagnosed) -> None:
    def network(rank: int) -> Load:
        per_second = 1e9 if rank >= GPUS else 2e9
        ports: Load = {m.NIC_TX: Ramp(0, per_second), m.NIC_RX: Ramp(0, per_second), m.NIC_UP: 1.0}
        return {**profiles.BALANCED, **ports, m.NIC_RATE_SHARE: 0.5 if rank == 7 else 1.0}

    labels = 'operation="AllReduce",message_size="256MiB+",scope="inter_node"'
    nccl = [f'{m.NCCL_BUS}{{gpu="0",UUID="GPU-{number}-0",{labels}}} {4e10 / (number + 1)}' for number in range(2)]
    result = diagnosed(*(SimulatedExporter(number, network, further=nccl[number : number + 1]) for number in range(2)))
    first, second = found(result)["links"]
    assert (first["node"], second["node"]) == ("node-0", "node-1")
    assert first["sent"] == pytest.approx(2e9, rel=0.1)
    assert second["received"] == pytest.approx(1e9, rel=0.1)
    assert (first["rate_ratio"], second["rate_ratio"]) == (1.0, 0.5)
    assert (first["collectives"], second["collectives"]) == (4e10, 2e10)
    assert second["findings"] == ["GpuNicSlowLink"]
    assert ("GpuNicSlowLink", [("node-1", "3")]) in urgent(result)
    text = "\n".join(report.report_lines(result, every=False, verbose=False, price=None))
    assert "NCCL AllReduce 256MiB+" in text
    assert "50 % of its rate" in text


def test_what_is_doubtful_is_said(diagnosed: Diagnosed) -> None:
    """A node that is not there, one that stops, one of another version, and one that is given twice."""
    exporters = [SimulatedExporter(0), SimulatedExporter(1, version="0.9{x}", answers=12), SimulatedExporter(0)]
    result = diagnosed(*exporters, urls=["http://127.0.0.1:9"])
    notes = found(result)["notes"]
    assert [note for note in notes if note.startswith("missing: http://127.0.0.1:9: nothing listens there")]
    assert [note for note in notes if note.startswith("node-1 stopped answering: ")]
    assert "versions differ, and others may lack signals: gpu-exporter 0.9{x} on node-1" in notes
    assert [note for note in notes if note.endswith("have the same GPUs, and count once")]
    assert len(found(result)["gpus"]) == GPUS
    assert {(each["node"], each["gpus"]) for each in found(result)["absent"]} == {
        ("node-1", f"GPU {gpu}") for gpu in range(GPUS)
    }


def test_names_can_be_masked(diagnosed: Diagnosed) -> None:
    result = diagnosed(*(SimulatedExporter(number, own=STRAGGLER) for number in range(2)), urls=["http://127.0.0.1:9"])
    page = html_page.page(result, mask=True, price=None)
    assert "holds up the job" in page
    assert not [name for name in ("node-1", "GPU-1-1", "ml/train", "train-5", "llm-7b", "127.0.0.1") if name in page]
    assert "Ranks of job ml/train" in html_page.page(result, mask=False, price=None)


def test_without_any_node(diagnosed: Diagnosed) -> None:
    with pytest.raises(GpuExporterError, match=r"no node answers: http://127.0.0.1:9: .* \(and 1 more node\)"):
        diagnosed(urls=["http://127.0.0.1:9", "http://127.0.0.1:11"])


def test_only_the_gpus_of_a_slurm_job(diagnosed: Diagnosed) -> None:
    """The step timer sends its number; if no exporter knows it, all GPUs are shown, and that is said."""
    jobs = [SimulatedExporter(number, pods=False, job=("4711", "4712")[number]) for number in range(2)]
    of_job = diagnosed(*jobs, job="4711")
    assert {gpu["node"] for gpu in found(of_job)["gpus"]} == {"node-0"}
    assert [(job["job"], len(job["ranks"])) for job in found(of_job)["jobs"]] == [("4711", GPUS)]
    assert not found(of_job)["notes"]
    unknown = diagnosed(*(SimulatedExporter(number, pods=False) for number in range(2)), job="4711")
    assert len(found(unknown)["gpus"]) == 2 * GPUS
    assert [note for note in found(unknown)["notes"] if note.startswith("no exporter says which GPUs job 4711 has")]


def test_gpus_without_a_job(diagnosed: Diagnosed) -> None:
    """They are not compared, unless the user says that they are ranks of one job."""

    def load(rank: int) -> Load:
        return profiles.STARVED if rank == 5 else profiles.OF_STARVED

    def nodes() -> list[SimulatedExporter]:
        return [SimulatedExporter(number, load, pods=False, loops=False) for number in range(2)]

    alone = diagnosed(*nodes())
    assert not found(alone)["jobs"]
    assert any("with --one-job" in line for line in report.report_lines(alone, every=False, verbose=False, price=None))
    together = diagnosed(
        *(SimulatedExporter(number, load, pods=False, loops=False) for number in range(2)), one_job=True
    )
    assert urgent(together) == [("GpuStragglerStarved", [("node-1", "1")])]
    (job,) = found(together)["jobs"]
    assert job["job"] is None
    assert "Ranks of the job:" in report.report_lines(together, every=False, verbose=False, price=None)
    assert sum(rank.get("state") == "waits" for rank in job["ranks"]) == 7


def test_in_a_terminal(diagnosed: Diagnosed) -> None:
    result = diagnosed(*(SimulatedExporter(number, own=STRAGGLER) for number in range(2)))
    lines = list(
        terminal_report.report_lines(
            result, width=100, style=lambda text, name: text, every=False, verbose=False, price=None
        )
    )
    (slow,) = [line for line in lines if line.endswith("straggler, holds up the job")]
    assert slow.split()[:3] == ["5", "node-1", "1"]
    assert any(line.startswith("Nothing is known of the links between these nodes") for line in lines)
