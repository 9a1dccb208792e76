"""An XID that requires a drain makes a GPU unhealthy until its repair."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from gpu_exporter.catalogue import metrics as m
from gpu_exporter.catalogue.xids import load
from gpu_exporter.events.event_log import RECENT_SECONDS, EventLog, decode
from gpu_exporter.events.xid_counts import Now
from gpu_exporter.health.fitness import is_healthy_but_for_xids
from gpu_exporter.model.gpu import Gpu, XidEvent
from gpu_exporter.model.metric import Metric
from gpu_exporter.model.verdict import Action, Problem, Unknown, Verdict

PCI = "00000000:06:00.0"
BOOTED = 1_790_000_000.0


class Node:
    """A node that booted at `BOOTED`, and its events."""

    def __init__(self) -> None:
        self.uptime = 5000.0
        self.events = EventLog(load(), lambda _: None, self.now)

    def now(self) -> Now:
        return Now(BOOTED + self.uptime, self.uptime)

    def xid(self, code: int, ago: float = 0.0) -> None:
        self.events.add_driver_xids([XidEvent(BOOTED + self.uptime - ago, PCI, code)])

    @property
    def reasons(self) -> Sequence[str]:
        return [problem.reason for problems in self.events.problems().values() for problem in problems]


def test_it_lasts_until_the_gpu_is_healthy() -> None:
    """However long that takes; but never less than ten minutes, because other values may follow the XID."""
    node = Node()
    node.xid(79)
    node.xid(31)
    node.events.confirm_repair(PCI)
    assert node.reasons == ["xid_79"]
    node.uptime += 50 * 3600
    assert node.reasons == ["xid_79"]
    node.events.confirm_repair("00000000:07:00.0")
    assert node.reasons == ["xid_79"]
    node.events.confirm_repair(PCI)
    assert node.reasons == []


def test_another_xid_needs_another_repair() -> None:
    node = Node()
    node.xid(119)
    node.uptime += RECENT_SECONDS
    node.events.confirm_repair(PCI)
    node.uptime += 3600
    node.xid(119)
    node.uptime += 3600
    assert node.reasons == ["xid_119"]


def test_a_reboot_is_a_repair() -> None:
    """The saved events of before the boot are no problems."""
    before, after = Node(), Node()
    before.xid(79)
    after.uptime = 60.0
    after.events = EventLog(load(), lambda _: None, lambda: Now(BOOTED + 5400, after.uptime))
    after.events.restore(decode(json.dumps({"events": before.events.state()}).encode()))
    assert after.reasons == []
    assert [event["xid"] for event in after.events.recent()] == [79]


def test_a_restart_of_the_exporter_is_no_repair() -> None:
    before, after = Node(), Node()
    before.xid(79)
    after.uptime += 7200
    after.events.restore(decode(json.dumps({"events": before.events.state()}).encode()))
    assert after.reasons == ["xid_79"]


def problem(metric: Metric) -> Problem:
    return Problem(metric, 1.0, "words", Action.DRAIN, "reason")


@pytest.mark.parametrize(
    ("problems", "unknown", "healthy"),
    [
        ((m.XID_LAST,), (), True),
        ((m.XID_LAST, m.XID_LAST), (), True),
        ((m.XID_LAST, m.ECC_DBE_VOL), (), False),
        ((m.XID_LAST,), (Unknown("recovery action", "timeout"),), False),
        ((m.XID_LAST,), (Unknown("recovery action", "not_supported", harmless=True),), True),
        ((), (), False),
    ],
)
def test_which_verdict_confirms_a_repair(
    problems: Sequence[Metric], unknown: tuple[Unknown, ...], healthy: bool
) -> None:
    """None where anything else is wrong or unknown; without XIDs there is nothing to confirm."""
    gpu = Gpu(0, "GPU-0", "NVIDIA H200")
    verdict = Verdict(gpu, tuple(map(problem, problems)), unknown)
    assert is_healthy_but_for_xids(verdict) is healthy
