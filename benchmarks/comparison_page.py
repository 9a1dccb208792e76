"""The cost beside other exporters in docs/comparison.md, docs/dcgm.md and README.md, from benchmarks/results/compared.

Results of `benchmarks.cost` are named after the GPUs, such as `--json benchmarks/results/compared/1_h100.json`. A value
that was not measured is absent from them, and its cell is empty.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import dcgm_engine
from benchmarks.harness import RESULTS, ROOT
from benchmarks.peers import DCGM, NVITOP
from benchmarks.sections import FLOOR, FLOOR_HEAD, has_floor, named, of_floor, percent, table, wrapped

COMPARED = RESULTS / "compared"
# So begin the names of results of `benchmarks.dcgm_engine`.
ENGINE = "dcgm_engine"
BEGIN, END = "<!-- from benchmarks/results/compared: {} -->", "<!-- end -->"
Result = Mapping[str, Any]
HEAD = ("exporter", "CPU of a core", "idle", "memory", "samples", "scrape, median", "scrape, p99", "start")
ENGINE_HEAD = ("client", "engine", "client", "together", "start", "samples", "memory")


def known(folder: Path = COMPARED) -> dict[str, Result]:
    """Return the committed results by name."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}


def boards(result: Result) -> str:
    """Return the GPUs of a result, such as 2 NVIDIA H200."""
    return ", ".join(f"{number} {name}" for name, number in result["machine"]["gpus"].items())


def conditions(result: Result) -> str:
    """Return when and on what a result was measured, in one line."""
    machine, versions = result["machine"], result.get("versions", {})
    parts = (
        f"driver {machine['driver']}",
        f"{machine['cores']} cores" if "cores" in machine else "",
        *(f"{name} {version}" for name, version in versions.items()),
        result["date"],
        f"commit {result['commit']}" if result["commit"] else "",
    )
    return ", ".join((boards(result), *filter(None, parts)))


def _shown(value: float | None, text: Callable[[float], str]) -> str:
    return "" if value is None else text(value)


def cost(result: Result) -> str:
    """Return the table of one machine."""
    floor = has_floor(result["numbers"]["rows"])
    rows = [
        (
            named(row["name"]),
            _shown(row.get("cpu"), lambda share: percent(share, 2)),
            _shown(row.get("idle_cpu"), lambda share: percent(share, 2)),
            f"{row['rss_mib']:.0f} MiB",
            f"{row['samples']}",
            f"{row['alone']['p50']:.1f} ms",
            f"{row['alone']['p99']:.1f} ms",
            f"{row['start_seconds']:.1f} s",
            *(of_floor(row) if floor else ()),
        )
        for row in result["numbers"]["rows"]
    ]
    absent = [(row["name"], f"not measured: {row['why']}") for row in result["numbers"].get("not_measured", ())]
    own, *others = sorted({row["seconds"] for row in result["numbers"]["rows"]}, reverse=True)
    spans = f"{own:g} s" + (f" (others {' or '.join(f'{span:.3g} s' for span in others)})" if others else "")
    head = (*HEAD, *(FLOOR_HEAD if floor else ()))
    return f"{wrapped(f'{conditions(result)}, measured for {spans}:')}\n\n{table(head, [*rows, *absent])}"


def costs(results: Mapping[str, Result]) -> str:
    """Return the tables of all machines, that with most GPUs first."""
    found = _by_size(results, of_engines=False)
    shown = [*map(cost, found)]
    floor = any(has_floor(result["numbers"]["rows"]) for result in found)
    return "\n".join(shown) + (FLOOR if floor else "")


def of_cost(results: Mapping[str, Result]) -> Result:
    """Return the result of the machine with most GPUs, with more of those that say what the memory consists of."""
    largest, *others = _by_size(results, of_engines=False)
    return {**largest, "more": [each for each in others if any(row.get("memory") for row in each["numbers"]["rows"])]}


def _by_size(results: Mapping[str, Result], *, of_engines: bool) -> list[Result]:
    found = [result for name, result in results.items() if name.startswith(ENGINE) is of_engines]
    return sorted(found, key=lambda result: -sum(result["machine"]["gpus"].values()))


def engines(results: Mapping[str, Result]) -> str:
    """Return the tables of host engines of all machines, that with most GPUs first."""
    return "\n".join(map(engine, _by_size(results, of_engines=True)))


def engine(result: Result) -> str:
    """Return the table of clients of a host engine, and what the engine uses alone."""
    rows, alone = [], None
    for row in result["numbers"]["rows"]:
        if row["name"] == dcgm_engine.IDLE:
            alone = row["engine"]
            continue
        both = [share for share in (row["engine"], row["client"]) if share is not None]
        rows.append(
            (
                row["name"] if row["name"] == DCGM else f"gpu-exporter, {row['name']}",
                _shown(row["engine"], percent),
                _shown(row["client"], percent),
                percent(sum(both)),
                f"{row['up']:.1f} s",
                f"{row['samples']}",
                f"{row['rss_mib']:.0f} MiB",
            )
        )
    idle = _shown(alone, lambda share: f"\nThe engine alone uses {percent(share)}.\n")
    return f"{conditions(result)}:\n\n{table(ENGINE_HEAD, rows)}{idle}"


def sentence(results: Mapping[str, Result]) -> str:
    """Return what README.md says: of the machine with most GPUs on which all three were measured."""
    names = ("default", NVITOP.name, f"{DCGM}, 1 s")
    shares = [
        (result, {row["name"]: row["cpu"] for row in result["numbers"]["rows"] if row.get("cpu") is not None})
        for result in _by_size(results, of_engines=False)
    ]
    most, found = next(each for each in shares if each[1].keys() >= {*names})
    own, nvitop, dcgm = (percent(found[name]) for name in names)
    return (
        f"{own} of a core ({boards(most)});\n"
        f"  in the same run {NVITOP.name} used {nvitop}, {DCGM} at the same interval {dcgm}:\n"
        "  [comparison](docs/comparison.md#cost)."
    )


SECTIONS: Sequence[tuple[str, str, Callable[[Mapping[str, Result]], str]]] = (
    ("docs/comparison.md", "costs", costs),
    ("docs/dcgm.md", ENGINE, engines),
    ("README.md", "costs", sentence),
)


def rendered(results: Mapping[str, Result], root: Path = ROOT) -> dict[str, str]:
    """Return the pages with new sections, by path."""
    return {name: _replaced((root / name).read_text(), what, shown(results)) for name, what, shown in SECTIONS}


def _replaced(text: str, what: str, section: str) -> str:
    begin = BEGIN.format(what)
    before, rest = text.split(begin)
    # A table is a block of its own, a sentence is part of its paragraph.
    gap = "\n\n" if section.endswith("\n") else ""
    return f"{before}{begin}{gap}{section.rstrip()}{gap}{END}{rest.split(END, 1)[1]}"
