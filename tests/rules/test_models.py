"""`check`, `diagnose` and the alerts agree on public GPU models, healthy and with each fault."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.failure_modes import MODES
from gpu_exporter.catalogue.faults import FAULTS
from gpu_exporter.diagnosis.diagnose import diagnose
from gpu_exporter.diagnosis.scrape import Scrape, ScrapedSample
from gpu_exporter.diagnosis.window import seen
from gpu_exporter.health import fitness
from gpu_exporter.health.links import GpuLinks, LinkHistory
from gpu_exporter.model.gpu import Gpu
from gpu_exporter.model.metric import Metric
from gpu_exporter.model.snapshot import GpuStatus
from gpu_exporter.model.verdict import Verdict
from tests.rules.promtool import WHAT, Case, Expect, check, firing
from tests.rules.series import Device, minutes
from tests.support.models import ANSWERS, ModelAnswers

Values = Mapping[Metric, float]
Change = Callable[[Values], Values]
# The modes of faults that one value of a GPU shows.
SHOWN = {fault.mode for fault in FAULTS}
MODES_OF_VALUES = [mode for mode in MODES if mode.name in SHOWN]
BEFORE, AFTER = 10.0, 25.0
# A Jetson answers nothing but its name.
JUDGED = [model for model in ANSWERS if model.values]


def scaled(metric: Metric, factor: float) -> Change:
    """Return what multiplies a value, where the GPU has it."""
    return lambda values: {metric: values[metric] * factor} if values.get(metric, 0.0) > 1 else {}


def became(metric: Metric, value: float) -> Change:
    """Return what sets a value, where the GPU has it."""
    return lambda values: {metric: value} if metric in values else {}


def hot(values: Values) -> Values:
    """Return a temperature at which the GPU slows down, with the margin that the driver then reports."""
    at_limit = {m.GPU_TEMP: values[m.SLOWDOWN_TEMP] - 1} if {m.GPU_TEMP, m.SLOWDOWN_TEMP} <= values.keys() else {}
    return at_limit | ({m.TEMP_MARGIN: 1.0} if m.TEMP_MARGIN in values else {})


def link_lost(values: Values) -> Values:
    """Return one active NVLink less."""
    return {m.NVLINK_UP: values[m.NVLINK_UP] - 1} if m.NVLINK_UP in values else {}


FAULTS_OF_VALUES: Mapping[str, tuple[str, Change]] = {
    "half the lanes": ("GpuPcieLinkDegraded", scaled(m.PCIE_WIDTH, 0.5)),
    "a slower link": (
        "GpuPcieLinkDegraded",
        lambda values: scaled(m.PCIE_GEN, 1 / values.get(m.PCIE_GEN, 1.0))(values),
    ),
    "an NVLink less": ("GpuNvlinkDown", link_lost),
    "ECC error": ("GpuEccUncorrectable", became(m.ECC_DBE_VOL, 1.0)),
    "row remapping pending": ("GpuRowRemapPending", became(m.REMAP_PENDING, 1.0)),
    "row remapping failed": ("GpuRowRemapFailed", became(m.REMAP_FAILURE, 1.0)),
    "page retirement pending": ("GpuRetiredPagesPending", became(m.RETIRED_PENDING, 1.0)),
    "hot": ("GpuThermalMarginLow", hot),
}


@dataclass(frozen=True)
class Cell:
    """A model with a fault on the first of its two GPUs, which was healthy before; without a fault, both stay so.

    `new`: the fault is there from the beginning, so that only the peer and the board tell.
    """

    node: str
    model: ModelAnswers
    before: Values
    now: Values
    mode: str
    new: bool = False

    @property
    def gpus(self) -> Sequence[Gpu]:
        """Return the two GPUs."""
        return [Gpu(index, f"GPU-{self.node}-{index}", f"00000000:0{index}:00.0", self.model.name) for index in (0, 1)]

    @cached_property
    def stretches(self) -> Sequence[Sequence[Values]]:
        """Return the values of both GPUs, before and after, with what gpu-exporter expects of their links."""
        history = LinkHistory()
        first = self.now if self.new else self.before
        return [list(self._with_expected(history, values)) for values in (first, self.now)]

    def _with_expected(self, history: LinkHistory, values: Values) -> Iterator[Values]:
        both = (values, self.before)
        links = [GpuLinks(gpu, own) for gpu, own in zip(self.gpus, both, strict=True)]
        yield from ({**own, **of_links} for own, of_links in zip(both, history.expected(links), strict=True))

    @property
    def is_narrow(self) -> bool:
        """Return whether the link has fewer lanes than the board."""
        return self.now.get(m.PCIE_WIDTH, 0.0) < self.now.get(m.PCIE_MAX_WIDTH, 0.0)

    @property
    def wanted(self) -> list[set[str]]:
        """Return the modes of each GPU that are right."""
        return [{self.mode} - {""}, set()]

    def verdicts(self) -> Sequence[Verdict]:
        """Return what `check` says."""
        return [
            fitness.judge(GpuStatus(gpu, up=True), values, lambda metric: "not_supported")
            for gpu, values in zip(self.gpus, self.stretches[1], strict=True)
        ]

    def checked(self) -> list[set[str]]:
        """Return the modes of what `check` finds."""
        mode = {fault.reason: fault.mode for fault in FAULTS}
        return [{mode[problem.reason] for problem in verdict.problems} for verdict in self.verdicts()]

    def diagnosed(self) -> list[set[str]]:
        """Return the modes that `diagnose` finds."""
        pages = [Scrape(60.0 * minute, list(self._samples(minute >= BEFORE))) for minute in range(int(BEFORE + AFTER))]
        return [{match.mode.name for match in each.matches} for each in diagnose(seen(pages, {}), MODES_OF_VALUES)]

    def _samples(self, after: bool) -> Iterator[ScrapedSample]:
        for gpu, values in zip(self.gpus, self.stretches[after], strict=True):
            labels = {"gpu": str(gpu.index), "UUID": gpu.uuid, "modelName": gpu.model, "Hostname": self.node}
            yield from (ScrapedSample(metric.name, labels, value) for metric, value in values.items())

    def devices(self) -> Iterator[Device]:
        """Return the GPUs for promtool."""
        for gpu in (0, 1):
            before, after = (values[gpu] for values in self.stretches)
            yield Device(self.node, gpu, (minutes(BEFORE, before), minutes(AFTER, after)), model=self.model.name)


def cells() -> Iterator[Cell]:
    """Yield each model idle, busy, and busy with each fault that it can show."""
    for number, model in enumerate(JUDGED):
        yield Cell(f"n{number}-idle", model, model.values, model.values, "")
        yield Cell(f"n{number}-busy", model, model.values, model.busy, "")
        for of_fault, (mode, change) in enumerate(FAULTS_OF_VALUES.values()):
            changed = change(model.busy)
            if changed:
                can_be_told = mode != "GpuPcieLinkDegraded" or m.GPU_UTIL in model.values
                now = {**model.busy, **changed}
                wanted = mode if can_be_told else ""
                yield Cell(f"n{number}-{of_fault}", model, model.busy, now, wanted)
                yield Cell(f"n{number}-{of_fault}-new", model, model.busy, now, wanted, new=True)


CELLS = tuple(cells())
# Of the cells with the same values missing, promtool evaluates one.
KINDS = {(frozenset(cell.now), cell.mode, cell.new, cell.is_narrow): cell for cell in CELLS}.values()


def test_no_healthy_model_is_called_degraded() -> None:
    """Idle and busy, however narrow its slot is."""
    healthy = [cell for cell in CELLS if not cell.mode]
    assert {cell.model.name for cell in healthy} == {model.name for model in JUDGED}
    assert {verdict.health.value for cell in healthy for verdict in cell.verdicts()} == {"healthy"}
    narrow = {cell.model.name for cell in healthy if cell.is_narrow}
    assert {"Tesla T4", "NVIDIA L40S", "NVIDIA L4", "Quadro P2000"} <= narrow


def test_check_and_diagnose_agree() -> None:
    """On every model with every fault that it can show."""
    wrong = {
        f"{cell.node} {cell.model.name}": (cell.mode, cell.checked(), cell.diagnosed())
        for cell in CELLS
        if not cell.checked() == cell.diagnosed() == cell.wanted
    }
    assert wrong == {}
    assert {cell.mode for cell in CELLS} == {"", *(mode for mode, _ in FAULTS_OF_VALUES.values())}


def test_alerts_agree(tmp_path: Path) -> None:
    """In promtool, the same modes fire on the same GPUs, and nothing else does."""
    expected = [
        (labels, value)
        for cell in KINDS
        for gpu, modes in enumerate(cell.wanted)
        for labels, value in firing(cell.node, modes, (gpu,))
    ]
    among = f'alertstate="firing", alertname=~"{"|".join(sorted(SHOWN))}"'
    query = f"group by ({WHAT}) (ALERTS{{{among}}})"
    devices = [device for cell in KINDS for device in cell.devices()]
    check(tmp_path, [Case("models", devices, [Expect(query, expected)])])
