"""The ranks of each job side by side, and the links between its nodes, from a diagnosis of several nodes. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from gpu_exporter.catalogue import nic_signals as n
from gpu_exporter.catalogue.bottlenecks import mean
from gpu_exporter.catalogue.failure_modes.loops import STRAGGLER
from gpu_exporter.catalogue.failure_modes.mode import Domain
from gpu_exporter.conditions import averages
from gpu_exporter.conditions.evaluate import value
from gpu_exporter.conditions.signal import Signal
from gpu_exporter.conditions.tree import Over
from gpu_exporter.diagnosis.diagnose import Diagnosis
from gpu_exporter.diagnosis.job_history import RankTotals
from gpu_exporter.diagnosis.rolling import RANK_WORDS, RankState, rank_state
from gpu_exporter.diagnosis.scrape import DeviceKey, Measured, as_scraped
from gpu_exporter.diagnosis.several_nodes import Operation
from gpu_exporter.diagnosis.training_loops import RankNow, self_times
from gpu_exporter.diagnosis.window import ONE_JOB, Window

_SIZES = ("0-1MiB", "1-16MiB", "16-256MiB", "256MiB+")


@dataclass(frozen=True, slots=True)
class LiveJob:
    """A job with several GPUs, and its ranks in order. `name` is empty if it is only said to be one job."""

    name: str
    ranks: Sequence[RankTotals]

    @property
    def nodes(self) -> Sequence[str]:
        """The nodes of its ranks."""
        return list(dict.fromkeys(rank.node for rank in self.ranks))


@dataclass(frozen=True, slots=True)
class NodeLinks:
    """The network ports of the GPUs of a node: bytes per second in each direction and retransmitted packets per second,
    means of the GPUs, which may share a port; the rate of the slowest link as a share of what it should be, and failure
    modes. `collectives` is the bus bandwidth of an operation of NCCL across nodes. What is unknown is None."""

    node: str
    sent: float | None
    received: float | None
    retransmits: float | None
    rate_share: float | None
    collectives: float | None
    findings: Sequence[str]

    @property
    def is_known(self) -> bool:
        """Whether anything is known."""
        return bool(self.findings) or any(
            each is not None for each in (self.sent, self.received, self.rate_share, self.collectives)
        )


def live_jobs(
    diagnoses: Iterable[Diagnosis], window: Window, seconds: float, measured: Measured = as_scraped
) -> list[LiveJob]:
    """Return the jobs with several GPUs that were watched for `seconds`.

    Ranks of training loops whose GPUs have no owner belong to the job of their `job_id`.
    """
    loops = {rank.labels.device: rank for rank in window.ranks_now}
    jobs: dict[str, list[tuple[Diagnosis, RankNow | None]]] = defaultdict(list)
    for diagnosis in diagnoses:
        loop = loops.get(measured(diagnosis.device))
        if diagnosis.identity.has_instances and not diagnosis.device.instance:
            continue
        is_one = diagnosis.identity.workload == ONE_JOB
        if name := ONE_JOB if is_one else diagnosis.identity.job or (loop.labels.job_id if loop else ""):
            jobs[name].append((diagnosis, loop))
    return [
        LiveJob("" if name == ONE_JOB else name, list(_ranks(of_job, window, seconds, measured)))
        for name, of_job in sorted(jobs.items())
        if len(of_job) > 1
    ]


def _ranks(
    of_job: Sequence[tuple[Diagnosis, RankNow | None]], window: Window, seconds: float, measured: Measured
) -> Iterator[RankTotals]:
    means = {loop.labels: loop.means for _, loop in of_job if loop and loop.means}
    compared = self_times(means)
    by_number = sorted(of_job, key=lambda each: (each[1] is None, _number(each[1]), each[0].identity.node))
    for diagnosis, loop in by_number:
        device, identity = diagnosis.device, diagnosis.identity
        rank = RankTotals(identity.node, device.uuid, identity.gpu, device.instance, loop.labels.rank if loop else "")
        rank.seconds = seconds if diagnosis.shares else 0.0
        for cause, share in diagnosis.shares.items():
            rank.time[cause.value] = share * seconds
        if loop and loop.means:
            rank.add_steps(loop.steps, loop.means)
            if loop.labels in compared and any(match.mode.name == STRAGGLER for match in diagnosis.matches):
                rank.excess = compared[loop.labels].excess * compared[loop.labels].step
        state = rank_state(window, replace(diagnosis, device=measured(device)))
        state = RankState.WAITED_FOR if rank.excess else state
        rank.note = "does not answer" if diagnosis.is_down else RANK_WORDS.get(state, "")
        yield rank


def _number(loop: RankNow | None) -> int:
    return int(loop.labels.rank) if loop and loop.labels.rank.isdecimal() else 0


def node_links(
    diagnoses: Iterable[Diagnosis],
    window: Window,
    collectives: Mapping[str, Mapping[Operation, float]],
    measured: Measured = as_scraped,
) -> tuple[list[NodeLinks], Operation | None]:
    """Return the links of each node, and the operation of NCCL that they are compared by: that of most nodes, with the
    largest messages."""
    known = [operation for of_node in collectives.values() for operation in of_node]
    operation = max(known, key=lambda each: (known.count(each), _size(each), each), default=None)
    ordered = sorted(diagnoses, key=lambda each: each.identity.node)
    found = []
    for node, of_node in groupby(ordered, key=lambda each: each.identity.node):
        gpus = list(of_node)
        keys = [measured(diagnosis.device) for diagnosis in gpus]
        bandwidth = collectives.get(window.devices[keys[0]].node, {}) if keys[0] in window.devices else {}
        modes = (match.mode for diagnosis in gpus for match in diagnosis.matches)
        rates = [rate for key in keys if (rate := value(Over(n.RATE_SHARE), window, key)) is not None]
        found.append(
            NodeLinks(
                node,
                _mean(n.TX, window, keys),
                _mean(n.RX, window, keys),
                _mean(n.RETRANSMITS, window, keys),
                min(rates, default=None),
                bandwidth.get(operation) if operation else None,
                list(dict.fromkeys(mode.name for mode in modes if mode.domain is Domain.NETWORK)),
            )
        )
    return found, operation


def _size(operation: Operation) -> int:
    return _SIZES.index(operation[1]) if operation[1] in _SIZES else -1


def _mean(signal: Signal, window: Window, keys: Iterable[DeviceKey]) -> float | None:
    values = [amount for key in keys if (amount := value(mean(signal), window, key)) is not None]
    return averages.mean(values) if values else None
