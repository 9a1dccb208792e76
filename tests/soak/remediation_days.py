"""Simulate days of operation with the remediation controller: `python -m tests.soak.remediation_days --days 30`."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from statistics import median

from tests.support.remediation_days import NODES, Days, Incident


def span(times: Iterable[float]) -> str:
    """Return the median and the maximum of some durations."""
    found = sorted(times)
    return f"{len(found):3d}   median {median(found):6.0f} s   max {found[-1]:6.0f} s" if found else "  0"


def report(days: Days) -> str:
    """Return what happened, and how long it took."""
    incidents = days.incidents
    calm = [each for each in incidents if not each.storm]
    waited = [each for each in calm if each.waited_for]
    cordoned = [each for each in incidents if each.cordoned]
    at_once = [each for each in incidents if each.storm]
    prompt = [each for each in cordoned if not each.waited_for]
    lines = [
        f"{days.days:g} days, {NODES} nodes, {len(incidents)} faults, of which {len(at_once)} at once",
        f"cordoned without or before a confirmed fault: {len(days.unjustified)}",
        f"fault to cordon:   {span(_to(each, each.cordoned) for each in prompt)}",
        f"  waited first:    {span(_to(each, each.cordoned) for each in cordoned if each.waited_for)}",
        f"fault to drained:  {span(_to(each, each.drained) for each in prompt if each.drained)}",
        f"drains timed out:  {sum(each.timed_out is not None for each in incidents)}",
        f"held by a person:  {sum(each.held for each in incidents)}",
        f"never cordoned:    {sum(each.cordoned is None for each in incidents)} "
        f"({sum(each.cordoned is None and each.storm for each in incidents)} of them at once: the breaker)",
        f"waited for budget: {len(waited)}",
    ]
    return "\n".join(lines)


def _to(incident: Incident, at: float | None) -> float:
    return (at or 0.0) - incident.began


def main() -> None:
    """Run the days and print what happened. A write that is not allowed is an AssertionError."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=float, default=30)
    parser.add_argument("--faults", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    days = Days(chosen.seed, chosen.days, chosen.faults)
    days.run()
    days.check_settled()
    print(report(days))
    assert not days.unjustified, "\n".join(days.unjustified)


if __name__ == "__main__":
    main()
