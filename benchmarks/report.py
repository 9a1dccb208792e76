"""Writes docs/performance.md and its plots from benchmarks/results/*.json, and the tables of `comparison_page`.

    python -m benchmarks.report [--check]

Every number on the page comes from one of these files. `--check` writes nothing: exit code 1 if a file is out of date.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import comparison_page, sections
from benchmarks.harness import BENCHMARKS, RESULTS, ROOT
from benchmarks.sections import Numbers, Shown, wrapped

PAGE, PLOTS = "docs/performance.md", "docs/performance"
INTRODUCTION = """\
# Performance

Every number and plot on this page is rendered from a file that a benchmark wrote to `benchmarks/results/`. `make bench`
runs the benchmarks that this machine supports and renders the page; `python -m benchmarks --list` lists them. Machines
differ, so compare only numbers of the same section: these were measured in one run. [Scaling](scale.md) says how many
GPUs one Prometheus can hold.
"""


@dataclass(frozen=True)
class Section:
    """The heading and introduction of a benchmark, and the function that renders its numbers."""

    name: str
    title: str
    prose: str
    shown: Callable[[Numbers], Shown]


SECTIONS = (
    Section(
        "cost",
        "What it costs",
        """One exporter after the other runs on the same GPUs. It is scraped once a second while its CPU is measured,
        then as fast as possible by one scraper and by ten. `everything` means `--metrics full --processes true`;
        `high-resolution` adds `--high-resolution true`. The column `prometheus_client` is the CPU that this library
        needs to render the same samples. *Memory of a collection* is what one collection allocates and frees, measured
        in a separate process. Extrapolated values use the difference between the runs with one GPU and with all GPUs,
        so their error grows with each further GPU. In these runs the first scrape of each client counted, most of which
        is the client's own first request: p99 of ten at once is one of these. The [comparison](comparison.md#cost) has
        other machines.""",
        sections.cost,
    ),
    Section(
        "perturbation",
        "Does it slow down the work on the GPU?",
        """The same work is run again and again. A run beside an exporter with everything on is compared with
        the mean of the runs just before and after it, during which no exporter runs. The same comparison
        without an exporter shows the noise of the measurement. At the longer interval, each run contains exactly
        one collection; its extra time is given as a share of the interval, because the exporter costs nothing between
        two collections. At the shorter interval, runs are compared as they are. Short measurements hardly cover the
        fields whose [pace](metrics.md) is slow or rare. The bound is one-sided, by Student's
        t-distribution over the pairs.""",
        sections.perturbation,
    ),
    Section(
        "stalls",
        "What it sees between two scrapes",
        """A GPU works for half a second and is idle for half a second, in turn. The exporter runs with
        `--metrics full --high-resolution`. The column *answer* is the result of these [queries](histograms.md#queries)
        in a Prometheus, or of the rate of a metric. *Truth* comes from the clock of the workload, and from the driver's
        power buffer and energy counter, which other processes read. Some answers are compared with the answer from
        another counter, or from more frequent scrapes, instead.""",
        sections.stalls,
    ),
    Section(
        "sampling",
        "How far are gauges and counters off between two scrapes?",
        """All exporters that are installed run at the same time, and one scraper reads them. The true power comes from
        the driver's energy counter, the true utilisation from GPM, or from the clock of the load where the driver has
        no GPM. Utilisation is off by points, power by percent of the truth. Gauges are averaged over all scrapes; of
        counters, the rise between the first and the last scrape counts. `bursts` computes matrix products and pauses,
        `rare` does so with a longer period, `steady` has no pause, and `tiny` launches tiny kernels. The counter of
        utilisation is ten seconds late, at each scrape by the same time. So if the time measured is not a multiple of
        a load's period, it may contain more or less of a pause than the truth does: a whole burst at most, as in
        `2+5`, and the longer the time, the less that is.""",
        sections.sampling,
    ),
    Section(
        "ground_truth",
        "Are the values correct?",
        "Workloads with known values: a bf16 matrix product of 8192³, a copy in device memory, one busy thread, none.",
        sections.ground_truth,
    ),
    Section(
        "training",
        "What does `gpu_exporter.read()` cost in a training loop?",
        "A transformer is trained in bf16, in turns with and without a call of `gpu_exporter.read()` once a second.",
        sections.training,
    ),
    Section(
        "nvml_stress",
        "Is the driver's library stable under load?",
        "Several processes, each with a thread for every GPU, read at the same time.",
        sections.nvml_stress,
    ),
    Section(
        "cost_stand_in",
        "How does the cost grow with the number of GPUs?",
        """Measured on the fake driver of the tests: this is the cost of gpu-exporter's own code and of the fake driver,
        without NVIDIA's library. In MIG mode each GPU has seven instances.""",
        sections.cost_stand_in,
    ),
    Section(
        "exposition",
        "What does a scrape cost?",
        "Measured with replayed GPUs. The response to frequent scrapes is made in advance, so they only send bytes.",
        sections.exposition,
    ),
    Section(
        "live_page",
        "What does the live page cost?",
        """Measured on the fake driver of the tests with a scrape each second. History and diagnoses are always kept,
        unless `--live-page false` is set; open pages read the stream of new values.""",
        sections.live_page,
    ),
    Section(
        "web",
        "What do TLS and passwords cost?",
        "One replayed GPU; passwords are checked with bcrypt; connections are kept open.",
        sections.web,
    ),
    Section(
        "fleet",
        "How many nodes can one process simulate?",
        "A real Prometheus discovers simulated nodes through `/sd` and scrapes them; both run on the same cores.",
        sections.fleet,
    ),
    Section(
        "first_screens",
        "How long does the first screen of a dashboard take?",
        """VictoriaMetrics holds what the first screens read of the last three hours, a sample a minute: copies of the
        nodes that `make boards` simulates. One node in twenty is faulty, one in four has a program that could be
        faster, and the large job has a straggler. A dashboard is opened five times, without a cache: its variables,
        then all queries of the panels in view, six at a time. *Series* is how many the selectors of these queries
        find. If the load average is high, the CPU of the store says more than the time.""",
        sections.first_screens,
    ),
)


def results(folder: Path = RESULTS) -> dict[str, Any]:
    """Return the results by name; of the cost, those of the comparison, if there is no other one."""
    found = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    return {"cost": comparison_page.of_cost(comparison_page.known()), **found}


def machine(found: Mapping[str, Any]) -> str:
    """Return a description of a machine in one line."""
    gpus = ", ".join(f"{number} {name}" for name, number in found["gpus"].items())
    boards = f"{gpus}, driver {found['driver']}; " if gpus else ""
    load = " ".join(f"{value:g}" for value in found["load_average"])
    return (
        f"{boards}{found['cores']} cores ({found['cpu']}), {found['memory_gib']:g} GiB, Linux {found['kernel']}, "
        f"Python {found['python']}; load average before: {load}"
    )


def section(known: Section, result: Mapping[str, Any] | None) -> tuple[str, Mapping[str, str]]:
    """Return the Markdown of a section, and its plots by path. A result may have more of the same benchmark."""
    head = f"## {known.title}\n\n{wrapped(known.prose)}\n"
    if result is None:
        (benchmark,) = (each for each in BENCHMARKS if each.name == known.name)
        needs = " and ".join(need.what for need in benchmark.needs) or "no GPU"
        return f"{head}\nNot measured for this version: `python -m benchmarks {known.name}` needs {needs}.\n", {}
    texts, made = [head], dict[str, str]()
    for number, each in enumerate((result, *result.get("more", ())), 1):
        shown = known.shown(each["numbers"])
        end = f"-{number}.svg" if number > 1 else ".svg"
        drawn = {f"{PLOTS}/{known.name}-{name}{end}": svg for name, svg in shown.plots.items()}
        images = "".join(
            f"\n![{name}]({path.removeprefix('docs/')})\n" for name, path in zip(shown.plots, drawn, strict=True)
        )
        commit = f", commit {each['commit']}" if each["commit"] else ""
        how = f"`{each['command']}`, {each['date']}{commit}: {machine(each['machine'])}."
        # What explains the tables is said once.
        parts = shown.text.split("\n\n")
        new = "\n\n".join(part for part in parts if number == 1 or part.strip() not in texts[1])
        texts.append(f"{wrapped(how)}\n\n{new}{images}")
        made |= drawn
    return "\n".join(texts), made


def rendered(found: Mapping[str, Any]) -> dict[str, str]:
    """Return the page and its plots, by path."""
    made = [section(known, found.get(known.name)) for known in SECTIONS]
    page = "\n".join([INTRODUCTION, *(text for text, _ in made)])
    drawings = {path: svg for _, drawn in made for path, svg in drawn.items()}
    return {PAGE: page} | drawings | comparison_page.rendered(comparison_page.known())


def differing(found: Mapping[str, Any], root: Path = ROOT) -> list[str]:
    """Return the files that are out of date, and the plots that no section has."""
    wanted = rendered(found)
    old = {str(path.relative_to(root)) for path in (root / PLOTS).glob("*.svg")}
    return sorted(
        name
        for name in wanted.keys() | old
        if not (root / name).exists() or wanted.get(name) != (root / name).read_text()
    )


def main() -> int:
    """Write or check the files."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description=__doc__)
    parser.add_argument("--check", action="store_true")
    check, found = parser.parse_args().check, results()
    names = differing(found)
    if check:
        for name in names:
            print(f"{name} is out of date; fix: python -m benchmarks.report")
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
