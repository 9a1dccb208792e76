"""Where the time of a GPU goes: disjoint shares by cause, which add up to 1.

Means over the window of the classes. A moment counts once, for the first of these causes that applies:

    no process    no kernel runs, nothing is copied, and no memory is in use
    throttled     the engine is busy, and its clock is lowered by heat or the power supply
    peers         a kernel waits for other ranks: it keeps few SMs busy while those of a working GPU are full
    copies        a copy engine works, and no kernel runs
    host          neither works
    underfilled   a kernel runs: the share of the SMs that are empty
    useful        a kernel runs: the share of the SMs that are active

A rank that waits in a collective keeps `waitingSm` of its SMs busy, one that works `workingSm`, so the SM activity of a
rank is the mean of both, weighted by time: s = w * waitingSm + (e - w) * workingSm for an engine activity e.
Measured on H100s and H200s against the time that workloads themselves injected: tests/recordings.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpu_exporter.catalogue import bottlenecks as c
from gpu_exporter.catalogue import model_assumptions as a
from gpu_exporter.catalogue import signals as s
from gpu_exporter.catalogue.bottlenecks import HANGS, WINDOW, mean
from gpu_exporter.catalogue.causes import SHARES, Cause
from gpu_exporter.conditions.evaluate import Device, SignalWindow
from gpu_exporter.conditions.formulas import (
    Arithmetic,
    Choice,
    Formula,
    Greatest,
    Known,
    Least,
    Positive,
    Recorded,
    WhereKnown,
    results,
)
from gpu_exporter.conditions.tree import And, Compare, Fn, Limit, Or, Over

RECORD, LABEL = "gpu:time:ratio", "cause"
# fmt: off
WORKING_SM   = Limit("workingSm", 0.94, "ratio", "SM activity of a rank that does not wait for others", a.TIME_SHARES)
WAITING_SM   = Limit("waitingSm", 0.17, "ratio", "SM activity of a rank that waits in a collective", a.TIME_SHARES)
LINK_LIMIT   = Limit("linkLimit", 0.92, "ratio", "share of the PCIe link that the fastest copy uses", a.TIME_SHARES)
EMPTY_MEMORY = Limit("emptyMemory", 200 * 2.0**20, "bytes", "device memory in use below which no process uses the GPU", a.MEMORY, any_model="less than a CUDA context needs; without a process, no memory is in use")
# fmt: on


def _minus(first: Formula, *rest: Formula) -> Formula:
    """Return the difference, or 0 where it is negative."""
    for each in rest:
        first = Arithmetic(first, "-", each)
    return Positive(first)


def _of_running(of: Formula) -> Formula:
    """Return a share of a GPU whose job makes progress. All time of a job that hangs is lost to its ranks."""
    return Choice(HANGS, 0.0, of)


ENGINE, SM = Least(1.0, c.GR), c.SM


def _recorded(cause: Cause, of: Formula, *known: Formula) -> Recorded:
    """Return a share of devices that have all shares: by default, those that have the first one."""
    return Recorded(RECORD, LABEL, cause.value, WhereKnown(of, known or (THROTTLED,)))


# Of a link, the busier direction counts. NVLink has no share: its capacity is not a signal.
_LINK = Arithmetic(Greatest(c.RX, c.TX), "/", LINK_LIMIT)
_BETWEEN_GPUS = Compare(c.NVLINK, ">=", c.MOVING)
# GPU utilisation counts copy engines, too, but too many of the gaps between short kernels. Where no kernel runs, it
# needs no help of the link, which other copies on the same host slow down.
_COPY_ENGINE = _minus(Least(1.0, mean(s.UTIL)), ENGINE)
_ONLY_COPIES = And(Compare(c.GR, "<", c.IDLE_ENGINE), c.COPYING)
_COPIES = Least(Choice(Or(_BETWEEN_GPUS, _ONLY_COPIES), 1.0, _LINK), _COPY_ENGINE)
_WAITS = Or(c.TRAFFIC, c.WAITING)

# Presence and the two means are what the other shares need: all else counts as 0 if it is unknown.
THROTTLED = _recorded(Cause.THROTTLED, _of_running(Least(c.THROTTLING, ENGINE)), Over(s.GR_ACTIVE), c.GR, SM)
_UNTHROTTLED = _minus(ENGINE, THROTTLED)
_SM_LACKING = _minus(Arithmetic(_UNTHROTTLED, "*", WORKING_SM), SM)
PEERS = _recorded(
    Cause.PEERS,
    Choice(
        HANGS,
        1.0,
        Choice(_WAITS, Least(Arithmetic(_SM_LACKING, "/", Arithmetic(WORKING_SM, "-", WAITING_SM)), _UNTHROTTLED), 0.0),
    ),
)
COPIES = _recorded(Cause.COPIES, _of_running(Known(_COPIES)))
_EMPTY = Compare(Over(s.FB_USED, Fn.MAX, WINDOW), "<", EMPTY_MEMORY)
NO_PROCESS = _recorded(Cause.NO_PROCESS, _of_running(Choice(_EMPTY, _minus(1.0, ENGINE, COPIES), 0.0)))
HOST = _recorded(Cause.HOST, _of_running(_minus(1.0, ENGINE, COPIES, NO_PROCESS)))
_WORKING = _minus(ENGINE, THROTTLED, PEERS)
USEFUL = _recorded(
    Cause.USEFUL,
    Least(_minus(SM, Arithmetic(PEERS, "*", WAITING_SM), Arithmetic(THROTTLED, "*", WORKING_SM)), _WORKING),
)
UNDERFILLED = _recorded(Cause.UNDERFILLED, _minus(_WORKING, USEFUL))

# In the order in which they are recorded: each reads only those before it.
TIME_SHARES: Mapping[Cause, Recorded] = {
    Cause.THROTTLED: THROTTLED,
    Cause.PEERS: PEERS,
    Cause.COPIES: COPIES,
    Cause.NO_PROCESS: NO_PROCESS,
    Cause.HOST: HOST,
    Cause.USEFUL: USEFUL,
    Cause.UNDERFILLED: UNDERFILLED,
}


def time_shares(window: SignalWindow, device: Device) -> Mapping[Cause, float]:
    """Return the shares of a device's time by cause, which add up to 1; empty if they are unknown."""
    return all_time_shares(window).get(device, {})


def all_time_shares(window: SignalWindow) -> Mapping[Device, Mapping[Cause, float]]:
    """Return the shares of each device of which they are known."""
    if "shares" not in window.memo:
        columns = [results(TIME_SHARES[cause], window) for cause in SHARES]
        known = (device for device in columns[0] if all(device in column for column in columns))
        window.memo["shares"] = {
            device: dict(zip(SHARES, [column[device] for column in columns], strict=True)) for device in known
        }
    shares: Mapping[Device, Mapping[Cause, float]] = window.memo["shares"]
    return shares
