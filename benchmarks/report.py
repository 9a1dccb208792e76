"""Writes docs/performance.md and its plots from benchmarks/results/*.json.

    python -m benchmarks.report [--check]

Every number there is of one of these files. `--check` writes nothing: exit code 1 if a file is not what is rendered.
"""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import sections
from benchmarks.harness import BENCHMARKS, RESULTS, ROOT
from benchmarks.sections import Numbers, Shown

PAGE, PLOTS = "docs/performance.md", "docs/performance"
INTRODUCTION = """\
# Performance

Every number and plot here is rendered from a file that a benchmark wrote, in `benchmarks/results/`: `make bench`
measures what this machine can and renders the page; `python -m benchmarks --list` has the names. Machines differ:
compare within a section, where all was measured in one run. What [one Prometheus holds](scale.md) has its own page.
"""
SOAK = """\
## Faults for a long time

`make soak` reads eight stand-in GPUs ten times a second for half an hour, while GPUs are lost, wedged and brought back
and the driver unloads and reloads at random: every scrape must be answered, and memory, threads and descriptors must
not grow.
"""


@dataclass(frozen=True)
class Section:
    """A heading, what is said of the measurement whatever it gives, and how its numbers are shown."""

    name: str
    title: str
    prose: str
    shown: Callable[[Numbers], Shown]


SECTIONS = (
    Section(
        "cost",
        "What it costs",
        """One exporter after the other on the same GPUs, scraped once a second while its CPU is measured, then as fast
        as it can by one scraper and by ten. `everything` is `--metrics full --processes true`, and `high-resolution`
        also `--high-resolution true`. Beside the CPU of a scrape stands what `prometheus_client` takes to render the
        same samples. What a tick takes is memory that it gives back, measured in another process. What is extrapolated
        rests on the difference of two runs, and multiplies its error with the number of GPUs that were not there.""",
        sections.cost,
    ),
    Section(
        "perturbation",
        "What it costs the GPU's work",
        """The same work again and again: a piece beside an exporter with everything on, compared with the mean of the
        pieces just before and after, which nothing watches. The same without an exporter is the noise of the
        measurement. A piece has one look of an exporter, and its cost is divided by the time from one look to the
        next, between which it is taken to cost nothing; at the shorter interval there is nothing to divide. Short runs
        have few of the reads that come rarely. The bound is one-sided, Student's over the pairs.""",
        sections.perturbation,
    ),
    Section(
        "stalls",
        "What it sees between two scrapes",
        """A GPU works for half a second and rests for half a second. Prometheus alone is asked the
        [expressions](histograms.md#each-question-is-one-expression); the truth is the loop's own clock, the driver's
        power buffer and the energy counter, read by other processes.""",
        sections.stalls,
    ),
    Section(
        "ground_truth",
        "What it shows is true",
        "Known workloads: a bf16 matrix product of 8192³, a copy in device memory, one thread spinning, nothing.",
        sections.ground_truth,
    ),
    Section(
        "training",
        "In a training loop",
        "A transformer in bf16, in turns with and without `gpu_exporter.read()` once a second in the loop.",
        sections.training,
    ),
    Section(
        "nvml_stress",
        "It survives the driver's library",
        "Processes with a thread for each GPU, all reading at once.",
        sections.nvml_stress,
    ),
    Section(
        "cost_stand_in",
        "By number of GPUs",
        """On the tests' stand-in driver: what is measured is our own code (and the stand-in), not NVIDIA's library. In
        MIG mode each GPU is seven instances.""",
        sections.cost_stand_in,
    ),
    Section(
        "exposition",
        "A scrape, without GPUs",
        "A scrape is a send of bytes that are there already.",
        sections.exposition,
    ),
    Section("web", "TLS and passwords", "One replayed GPU, bcrypt, kept connections.", sections.web),
    Section(
        "fleet",
        "A fleet in one process",
        "Simulated nodes, found by a real Prometheus through `/sd`; both on the same cores.",
        sections.fleet,
    ),
)


def results(folder: Path = RESULTS) -> dict[str, Any]:
    """What was measured, by name."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}


def machine(found: Mapping[str, Any]) -> str:
    """One line for people."""
    gpus = ", ".join(f"{number} {name}" for name, number in found["gpus"].items())
    boards = f"{gpus}, driver {found['driver']}; " if gpus else ""
    load = " ".join(f"{value:g}" for value in found["load_average"])
    return (
        f"{boards}{found['cores']} cores ({found['cpu']}), {found['memory_gib']:g} GiB, Linux {found['kernel']}, "
        f"Python {found['python']}; load average before: {load}"
    )


def section(known: Section, result: Mapping[str, Any] | None) -> tuple[str, Mapping[str, str]]:
    """Its Markdown, and its plots by path."""
    head = f"## {known.title}\n\n{wrapped(known.prose)}\n"
    if result is None:
        (benchmark,) = (each for each in BENCHMARKS if each.name == known.name)
        needs = " and ".join(need.what for need in benchmark.needs) or "no GPU"
        return f"{head}\nNot measured for this version: `python -m benchmarks {known.name}` needs {needs}.\n", {}
    shown = known.shown(result["numbers"])
    made = {f"{PLOTS}/{known.name}-{name}.svg": svg for name, svg in shown.plots.items()}
    images = "".join(
        f"\n![{name}]({path.removeprefix('docs/')})\n" for name, path in zip(shown.plots, made, strict=True)
    )
    commit = f", commit {result['commit']}" if result["commit"] else ""
    told = f"`{result['command']}`, {result['date']}{commit}: {machine(result['machine'])}."
    return f"{head}\n{wrapped(told)}\n\n{shown.text}{images}", made


def wrapped(text: str) -> str:
    """Lines of 120 characters at most, as the other pages have them."""
    return textwrap.fill(" ".join(text.split()), 120, break_long_words=False, break_on_hyphens=False)


def rendered(found: Mapping[str, Any]) -> dict[str, str]:
    """The page and its plots, by path."""
    made = [section(known, found.get(known.name)) for known in SECTIONS]
    page = "\n".join([INTRODUCTION, *(text for text, _ in made), SOAK])
    return {PAGE: page} | {path: svg for _, drawn in made for path, svg in drawn.items()}


def differing(found: Mapping[str, Any], root: Path = ROOT) -> list[str]:
    """Which files are not what is rendered; also plots that are no more."""
    wanted = rendered(found)
    old = {str(path.relative_to(root)) for path in (root / PLOTS).glob("*.svg")}
    return sorted(
        name
        for name in wanted.keys() | old
        if not (root / name).exists() or wanted.get(name) != (root / name).read_text()
    )


def main() -> int:
    """Write or check."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description=__doc__)
    parser.add_argument("--check", action="store_true")
    check, found = parser.parse_args().check, results()
    names = differing(found)
    if check:
        for name in names:
            print(f"{name} is not what benchmarks/results say; fix: python -m benchmarks.report")
        return 1 if names else 0
    made = rendered(found)
    for name in names:
        path = ROOT / name
        if name in made:
            path.parent.mkdir(exist_ok=True)
            path.write_text(made[name])
        else:
            path.unlink()
        print(f"{'wrote' if name in made else 'removed'} {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
