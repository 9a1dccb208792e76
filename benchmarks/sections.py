"""Results as Markdown tables and plots by name: one function for each benchmark."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from benchmarks import plots
from benchmarks.cost import SETS
from benchmarks.sampling import off

Numbers = Mapping[str, Any]
CLOCK, BUFFER, COUNTER = "clock of the workload", "power buffer", "energy counter"
ACTIVITY, MEAN_SM = "gpu_gr_engine_active_seconds_total", "`gpu_sm_active_ratio` (sum by count)"
# Checks of benchmarks.stalls: the quantity, the query of docs/histograms.md or the metric, and the source of the truth.
CHECKS: Mapping[str, tuple[str, str, str]] = {
    "share of time at work": ("share of time at work", f"`{ACTIVITY}`", CLOCK),
    "the same by the histogram of SMs": ("share of time at work", "`over_half`", f"`{ACTIVITY}`"),
    "share of time at work, scraped every 5 s": ("share of time at work", "`over_half`", "scraped every 5 s"),
    "low power, W": ("low power, W", "`low_power`", BUFFER),
    "high power, W": ("high power, W", "`high_power`", BUFFER),
    "highest power, W (edge of its bucket)": ("highest power, W", "`gpu_board_power_watts` (highest edge)", BUFFER),
    "share of time above the power limit": ("share of time above the power limit", "`above_limit`", BUFFER),
    "mean power, W, by the driver's buffer": ("mean power, W", "`mean_power`", BUFFER),
    "mean power, W, by the energy counter": ("mean power, W", "`mean_power`", COUNTER),
    "mean power, W, scraped every 5 s": ("mean power, W", "`mean_power`", "scraped every 5 s"),
    "usual gap, s": ("median idle gap, s", "`usual_gap`", CLOCK),
    "mean SM active, by its counter": ("mean SM activity", MEAN_SM, "`gpu_sm_active_seconds_total`"),
    "mean SM active, scraped every 5 s": ("mean SM activity", MEAN_SM, "scraped every 5 s"),
}


ACCOUNTING = """
CPU and memory are those of everything that an exporter starts, including processes that have ended, and of the host
engine that it reads. In a run of 10 s, the CPU has an error of 0.2 points. Memory is the most at any time while it is
scraped. *Start* is the time until the first page with all samples.
"""
MORE_HEAD = ("ten at once", "CPU of a scrape", "`prometheus_client`", "memory of a collection")
MOST_PARTS = 24
# How many functions of the driver the page names.
MOST_FUNCTIONS = 8
# Threads with less have no row: those that sleep until something happens.
LEAST_CPU, LEAST_WAKEUPS = 0.00005, 0.1
MEMORY = """
What the memory consists of, measured in a separate process: by how much the import of each package adds to it, and the
rest. To need only 1.4 times the floor, `serve` would have to do without an HTTP server that can use TLS (`ssl`,
`tornado`, `asyncio` and what they import), and without judging on the node (`catalogue`, `conditions`, `diagnosis`).
"""
# What the threads do is in docs/architecture.md.
THREADS = """
What the CPU consists of, measured in a separate process that is scraped once a second, for half as long: the share of a
core and the wake-ups a second of each [thread](architecture.md#threads). `reader` calls the driver, as the floor does;
`clock` makes the page and compresses it, `http` sends it. Below the floor are the functions of the driver that need
most of it: the prices of metrics. `nvmlDeviceGetSamples` is the counted utilisation of GPU and memory, which costs this
much however many samples are new.

What would save more, and what it would cost: other libraries for compression and HTTP (dependencies), pages that are
made only when they are scraped (a scrape would wait for its page), rendering in C (a compiler).
"""
FLOOR_HEAD = ("CPU by the floor", "memory by the floor", "wake-ups a second")
FLOOR = """
The *floor* is the least that reading the same GPUs can cost: the memory of a Python process that imports `pynvml` and
reads each GPU once, and the CPU of one loop that makes the same NVML calls at the same pace. A *wake-up* is a thread
that has waited, without any scrape. The memory by the floor is missing where Python found no bytecode: compiling adds
15 MiB to the floor and 4 MiB to gpu-exporter.
"""


@dataclass(frozen=True)
class Shown:
    """Markdown, and SVG files by name (without the extension), which are shown below it."""

    text: str
    plots: Mapping[str, str] = field(default_factory=dict)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; the first column is text."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines) + "\n"


def wrapped(text: str) -> str:
    """Wrap a text at 120 characters."""
    return textwrap.fill(" ".join(text.split()), 120, break_long_words=False, break_on_hyphens=False)


def percent(share: float, digits: int = 1) -> str:
    """Return a share as text: 0.0123 is `1.2 %`."""
    return f"{share * 100:.{digits}f} %"


def _by(count: int, thing: str) -> str:
    return f"{count} {thing}" + ("s" if count != 1 else "")


def _cells(each: Numbers) -> tuple[str, ...]:
    """Return the cells of an exporter after the CPU of its collections."""
    return (
        f"{each['rss_mib']:.0f} MiB",
        f"{each['samples']}",
        f"{each['body_bytes'] / 1024:.0f} / {each['gzip_bytes'] / 1024:.0f} KiB",
        _latency(each["alone"]),
        _latency(each["ten"]),
        f"{each['scrape_cpu_ms']:.2f} ms",
        f"{each['rendering_ms']:.1f} ms",
        _collection(each["allocations"]),
    )


def cost(numbers: Numbers) -> Shown:
    """Return one row for each exporter; if it was measured with fewer GPUs, too, also an extrapolation to eight."""
    found, most_gpus = numbers["rows"], max(each["gpus"] for each in numbers["rows"])
    # Results of earlier versions have no idle CPU and no start, and count only the process of the exporter.
    fair, floor = all("idle_cpu" in each for each in found), has_floor(found)
    rows: list[tuple[str, ...]] = [
        (
            named(each["name"]) + ("" if each["gpus"] == most_gpus else f", {each['gpus']} of these GPUs"),
            percent(each["cpu"], 2),
            *([percent(each["idle_cpu"], 2), f"{each['start_seconds']:.1f} s"] if fair else []),
            *_cells(each),
            "" if each["ticks_skipped"] is None else f"{each['ticks_skipped']}",
            *(of_floor(each) if floor else ()),
        )
        for each in found
    ]
    rows += [(each["name"], f"not measured: {each['why']}") for each in numbers.get("not_measured", ())]
    head = ["exporter", "CPU of a core", "memory", "samples", "body / gzip", "one scraper: p50 / p99 / worst"]
    head[2:2] = ["CPU without a scrape", "start"] if fair else []
    more = (*MORE_HEAD, "collections skipped", *(FLOOR_HEAD if floor else ()))
    whole = [each for each in found if each["gpus"] == most_gpus]
    names, what = [each["name"] for each in whole], _by(most_gpus, "GPU")
    return Shown(
        table((*head, *more), rows)
        + (ACCOUNTING if fair else "")
        + (FLOOR if floor else "")
        + _threads(found)
        + _memory(found)
        + _extrapolated(found, most_gpus),
        {
            "cpu": plots.bars(f"CPU, {what}", "% of a core", names, {"CPU": _all(whole, "cpu", 100)}, "{:.2f}"),
            "memory": plots.bars(f"Memory, {what}", "MiB", names, {"RSS": _all(whole, "rss_mib")}, "{:.0f}"),
        },
    )


def _extrapolated(found: Sequence[Numbers], most_gpus: int) -> str:
    """Return the cost of eight GPUs if each further GPU costs as much as the last measured one; empty if unknown."""
    most = {each["name"]: each for each in found if each["gpus"] == most_gpus}
    rows = []
    for few in (each for each in found if each["gpus"] < most_gpus and each["name"] in most):
        many = most[few["name"]]
        cpu, mib = ((many[key] - few[key]) / (most_gpus - few["gpus"]) for key in ("cpu", "rss_mib"))
        eight = (many["cpu"] + (8 - most_gpus) * cpu, many["rss_mib"] + (8 - most_gpus) * mib)
        rows.append(
            (named(few["name"]), percent(cpu, 2), f"{mib:.1f} MiB", percent(eight[0]), f"{eight[1]:.0f} MiB"),
        )
    head = ("**not measured, but extrapolated**", "CPU, each further GPU", "memory", "CPU, eight", "memory, eight")
    return "\n" + table(head, rows) if rows else ""


def named(row: str) -> str:
    """Return the title of a row of `benchmarks.cost`."""
    name, _, interval = row.partition("@")
    if name not in SETS:
        return name
    return f"gpu-exporter, {name}, {interval.replace('ms', ' ms') or '1 s'}"


def has_floor(rows: Sequence[Numbers]) -> bool:
    """Return whether a row is compared with the floor. Results of earlier versions have none."""
    return any(each.get("floor") for each in rows)


def of_floor(each: Numbers) -> tuple[str, ...]:
    """Return the CPU and the memory of a row by those of its floor, and how often its threads wake up in a second."""
    wakes, floor = f"{each['wakeups']:.0f}", each.get("floor")
    if not floor:
        return "", "", wakes
    cpu = f"{each['cpu'] / floor['cpu']:.1f} times {percent(floor['cpu'], 2)}"
    # Where the floor compiled `pynvml`, its memory is no floor.
    mib = floor["rss_mib"]
    return cpu, f"{each['rss_mib'] / mib:.2f} times {mib:.1f} MiB" if mib else "", wakes


def _threads(found: Sequence[Numbers]) -> str:
    """Return what the CPU of each row consists of; empty if no row has that."""
    rows = [each for each in found if each.get("threads")]
    if not rows:
        return ""
    spent = [each["threads"] for each in rows]
    names = [name for name, (cpu, wakes) in spent[0].items() if cpu >= LEAST_CPU or wakes >= LEAST_WAKEUPS]
    names += [name for each in spent[1:] for name in each if name not in spent[0]]
    names = sorted(dict.fromkeys(names), key=lambda name: -max(each.get(name, (0.0,))[0] for each in spent))
    cells = [
        (f"`{name}`", *(f"{percent(each[name][0], 2)}, {each[name][1]:.1f}" if name in each else "" for each in spent))
        for name in names
    ]
    sums = [[sum(column) for column in zip(*each.values(), strict=True)] for each in spent]
    head = ("CPU of a core and wake-ups, of", *(named(each["name"]) for each in rows))
    floors = [percent(each["floor"]["cpu"], 2) if each.get("floor") else "" for each in rows]
    all_threads = ("all threads", *(f"{percent(cpu, 2)}, {wakes:.1f}" for cpu, wakes in sums))
    functions = [(each.get("floor") or {}).get("functions", {}) for each in rows]
    called = sorted(functions[0], key=lambda name: -functions[0][name])[:MOST_FUNCTIONS]
    in_driver = [
        (f"`{name}`", *(percent(each[name], 2) if name in each else "" for each in functions)) for name in called
    ]
    return THREADS + "\n" + table(head, [*cells, all_threads, ("the floor", *floors), *in_driver])


def _memory(found: Sequence[Numbers]) -> str:
    """Return what the memory of each row consists of; empty if no row has that."""
    rows = [each for each in found if each.get("memory")]
    if not rows:
        return ""
    names = sorted(rows[0]["memory"], key=lambda name: -rows[0]["memory"][name])[:MOST_PARTS]
    cells = [(name, *(f"{each['memory'].get(name, 0.0):.1f}" for each in rows)) for name in names]
    others = [sum(mib for name, mib in each["memory"].items() if name not in names) for each in rows]
    head = ("memory in MiB, of", *(named(each["name"]) for each in rows))
    return MEMORY + "\n" + table(head, [*cells, ("other modules", *(f"{mib:.1f}" for mib in others))])


def _latency(found: Mapping[str, float]) -> str:
    return " / ".join(f"{found[name]:.1f}" for name in ("p50", "p99", "worst")) + " ms"


def _collection(allocations: Mapping[str, float] | None) -> str:
    return f"{allocations['peak_kib']:.0f} KiB" if allocations else ""


def _all(rows: Sequence[Numbers], key: str, scale: float = 1.0) -> list[float]:
    return [each[key] * scale for each in rows]


def cost_stand_in(numbers: Numbers) -> Shown:
    """Return one row for each number of GPUs, with and without MIG, and set of metrics."""
    found, floor = numbers["rows"], has_floor(numbers["rows"])
    rows = [
        (
            f"{each['gpus']}{' in MIG mode' if each['mig'] else ''}, {each['name']}",
            percent(each["cpu"]),
            *_cells(each),
            *(of_floor(each) if floor else ()),
        )
        for each in found
    ]
    head = ("GPUs, metrics", "CPU of a core", "memory", "samples", "body / gzip", "one scraper: p50 / p99 / worst")
    more = (*MORE_HEAD, *(FLOOR_HEAD if floor else ()))
    counts = sorted({each["gpus"] for each in found})
    kinds = {f"{each['name']}{', MIG' if each['mig'] else ''}": (each["name"], each["mig"]) for each in found}

    def over(key: str, scale: float = 1.0) -> dict[str, list[float | None]]:
        values = {(each["name"], each["mig"], each["gpus"]): each[key] * scale for each in found}
        return {label: [values.get((*kind, count)) for count in counts] for label, kind in kinds.items()}

    labels = [str(count) for count in counts]
    return Shown(
        table((*head, *more), rows) + (FLOOR if floor else ""),
        {
            "cpu": plots.lines("CPU by number of GPUs", "% of a core", labels, over("cpu", 100), "{:.1f}"),
            "scrape": plots.lines(
                "CPU of rendering with prometheus_client", "ms", labels, over("rendering_ms"), "{:.1f}"
            ),
        },
    )


def perturbation(numbers: Numbers) -> Shown:
    """Return one row for each workload and condition."""
    found = numbers["workloads"]
    rows = [
        (
            name if condition == "noise" else "",
            "none (noise)" if condition == "noise" else _exporter(condition),
            percent(each["mean"], 2),
            percent(each["upper"], 2),
            f"{each['pairs']}",
        )
        for name, work in found.items()
        for condition, each in work["slowdown"].items()
    ]
    conditions = list(dict.fromkeys(condition for work in found.values() for condition in work["slowdown"]))
    uppers = {
        condition: [work["slowdown"].get(condition, {}).get("upper", 0.0) * 100 for work in found.values()]
        for condition in conditions
    }
    return Shown(
        table(("workload", "exporter", "slowdown", "upper bound (95 %)", "pairs"), rows),
        {"bounds": plots.bars("Slowdown: upper bound of 95 %", "%", list(found), uppers, "{:.2f}")},
    )


def _exporter(condition: str) -> str:
    """Return the exporter of a condition of `benchmarks.perturbation`: an interval, or the name of another exporter."""
    return f"gpu-exporter, {condition}" if condition[0].isdigit() else condition


def stalls(numbers: Numbers) -> Shown:
    """Return answers beside the truth, the values of gauges, and the distribution of power."""
    checks = []
    for each in numbers["checks"]:
        what, query, source = CHECKS[each["what"]]
        values = (f"{each[name]:.3f}" for name in ("answer", "truth", "tolerance"))
        checks.append((what, query, source, *values, _yes(each["good"])))
    gauges = [
        (f"`{name}`", f"{min(values):g}", f"{sum(values) / len(values):.3g}", f"{max(values):g}", f"{len(values)}")
        for shown in numbers["gauges"].values()
        for name, values in shown.items()
        if values
    ]
    jobs = {"ten times a second": "every_15s", "once a second": "each_second"}
    means = [
        (read, *(f"{numbers['answers'][name][job]:.3f}" for name in ("sm_active_by_counter", "engine_active")))
        for read, job in jobs.items()
    ]
    buckets = numbers["power_buckets"]
    labels, shares = [f"{edge:g}" for edge, _ in buckets], [share * 100 for _, share in buckets]
    columns = ("answer, scraped every 15 s", "truth", "tolerance", "within")
    title = f"GPU power as Prometheus has recorded it; the limit is {numbers['limit']:g} W"
    return Shown(
        table(("quantity", "query or metric", "source of the truth", *columns), checks)
        + "\nSM activity is a share of the SMs' clock cycles. The clock is faster when the GPU is idle than when it\n"
        "works at the power limit, so idle time weighs more than its duration in a mean over both.\n\n"
        + table(("the counters are read", "SM active", "graphics engine active"), means)
        + "\nThe gauges of gpu-exporter and nvitop-exporter in the same scrapes:\n\n"
        + table(("gauge", "lowest", "mean", "highest", "scrapes"), gauges),
        {"power": plots.bars(title, "% of the time", labels, {"in the bucket up to this power (W)": shares}, "{:.1f}")},
    )


def _yes(value: bool) -> str:
    return "yes" if value else "**no**"


def sampling(numbers: Numbers) -> Shown:
    """Return a table for each load: how far each exporter is off, by gauge and by counter."""
    by_load: dict[tuple[str, int], list[Numbers]] = {}
    for each in numbers["rows"]:
        by_load.setdefault((each["load"], each["gpu"]), []).append(each)
    head = ("exporter", "scraped", "utilisation: gauge", "counter", "power: gauge", "counter")
    texts = []
    for (load, gpu), found in by_load.items():
        first = found[0]
        known = first["true_utilisation"]
        truth = f"{'' if known is None else f'utilisation {percent(known)}, '}{first['true_watts']:.1f} W"
        rows = [
            (
                each["exporter"],
                f"every {each['every']:g} s",
                *(
                    off(each["utilisation"][by], each["true_utilisation"], relative=False)
                    for by in ("gauge", "counter")
                ),
                *(off(each["watts"][by], each["true_watts"], relative=True) for by in ("gauge", "counter")),
            )
            for each in found
        ]
        texts.append(f"`{load}` on GPU {gpu}, {first['seconds']:.0f} s: {truth}.\n\n{table(head, rows)}")
    return Shown("\n".join(texts))


def ground_truth(numbers: Numbers) -> Shown:
    """Return one row for each workload and GPU."""
    shown = ("sm_active", "tensor", "dram", "sm_active_by_counter")
    rows = [
        (
            f"{each['workload']}, GPU {each['gpu']}",
            f"{each['utilisation_percent']:.0f} %",
            *(f"{each[name]:.3f}" for name in shown),
            f"{each['watts']:.0f} W",
        )
        for each in numbers["rows"]
    ]
    return Shown(table(("workload", "utilisation", "SM active", "tensor", "DRAM", "SM by counter", "power"), rows))


def training(numbers: Numbers) -> Shown:
    """Return one row."""
    row = (
        f"{numbers['steps']}",
        f"{numbers['without_ms']:.3f} ms",
        f"{numbers['with_ms']:.3f} ms",
        percent(numbers["slowdown"], 2),
        f"{numbers['read_ms']:.2f} ms",
    )
    return Shown(table(("steps of each kind", "time of a step without", "with", "slowdown", "time of a read"), [row]))


def nvml_stress(numbers: Numbers) -> Shown:
    """Return one row."""
    died = sum(code != 0 for code in numbers["exit_codes"])
    row = (f"{numbers['processes']}", f"{numbers['gpus']}", f"{numbers['seconds']:g} s", f"{died}")
    return Shown(table(("processes", "threads of each", "duration", "processes that crashed"), [row]))


def exposition(numbers: Numbers) -> Shown:
    """Return the CPU of a scrape, that of rendering with `prometheus_client`, and their ratio."""
    what = f"{_by(numbers['gpus'], 'GPU')}, {numbers['samples']} samples, {numbers['body_bytes'] / 1000:.0f} kB"
    rows = [
        ("a scrape of gpu-exporter over HTTP", f"{numbers['scrape_cpu_ms']:.2f} ms"),
        ("rendering the same samples with `prometheus_client`", f"{numbers['rendering_ms']:.1f} ms"),
        ("ratio", f"{numbers['ratio']:.0f}"),
    ]
    return Shown(table((what, "CPU"), rows))


def live_page(numbers: Numbers) -> Shown:
    """Return one row for each way to run the exporter: the median of its rounds."""
    ways = {
        "off": "without history and diagnoses",
        "on": "with them",
        "kept": "with incidents and jobs kept on disk, too (`--state-dir`)",
        "pages": f"with {numbers['pages']} open pages",
    }
    rows = []
    for name, words in ways.items():
        rounds = [row for row in numbers["rows"] if row["name"] == name]
        if not rounds:  # of an older benchmark
            continue
        cpu, rss, p50, p99 = (median(row[key] for row in rounds) for key in ("cpu", "rss_mib", "p50", "p99"))
        rows.append((words, percent(cpu, 2), f"{rss:.1f} MiB", f"{p50:.1f} ms, {p99:.1f} ms"))
    head = (f"gpu-exporter on {_by(numbers['gpus'], 'GPU')}", "CPU (of one core)", "memory", "a scrape: p50, p99")
    return Shown(table(head, rows))


def web(numbers: Numbers) -> Shown:
    """Return scrapes, and a flood of wrong passwords."""
    scrapes = [(what, f"{e['p50_ms']:.2f} ms", f"{e['cpu_ms']:.2f} ms") for what, e in numbers["scrapes"].items()]
    flood = numbers["flood"]
    answers = ", ".join(f"{number} times {status}" for status, number in flood["answers"].items())
    rows = [
        ("wrong passwords, all different, over ten connections", f"{flood['wrong']}"),
        ("responses", answers),
        ("time and CPU for all of them", f"{flood['seconds']:.1f} s, {flood['cpu_seconds']:.1f} s"),
        ("scrapes with the right password in this time, all served", f"{flood['verified']}"),
        ("their p50 and slowest", f"{flood['verified_p50_ms']:.1f} ms, {flood['verified_worst_ms']:.1f} ms"),
        ("a right password that comes for the first time is accepted", f"after {flood['late_seconds']:.1f} s"),
    ]
    return Shown(table(("a scrape", "p50", "CPU"), scrapes) + "\n" + table(("a flood of wrong passwords", ""), rows))


def first_screens(numbers: Numbers) -> Shown:
    """Return one row for each dashboard."""
    rows = [
        (
            f"GPU / {'GPU' if row['board'] == 'gpu' else row['board'].capitalize()}",
            f"{row['queries']}",
            f"{row['series']}",
            f"{median(row['seconds']):.2f} s, {max(row['seconds']):.2f} s",
            f"{median(row['cpu']):.2f} s",
        )
        for row in numbers["rows"]
    ]
    head = f"{numbers['nodes']} nodes, a job of {numbers['ranks']} ranks"
    return Shown(table((head, "queries", "series", "first screen: median, slowest", "CPU of the store"), rows))


def fleet(numbers: Numbers) -> Shown:
    """Return one row for each number."""
    (ours, ours_mib), (theirs, theirs_mib) = numbers["exporter"], numbers["prometheus"]
    rows = [
        ("nodes, GPUs of each node", f"{numbers['nodes']}, {numbers['gpus']}"),
        ("scrape interval, duration", f"{numbers['scrape_interval']} s, {numbers['seconds']} s"),
        ("scrapes, failed, missed", f"{numbers['scrapes']}, {numbers['failed']}, {numbers['missed']}"),
        ("samples of all nodes", f"{numbers['samples']}"),
        (
            "a scrape: p50, p99, slowest",
            ", ".join(f"{numbers[key]:.1f} ms" for key in ("p50_ms", "p99_ms", "worst_ms")),
        ),
        (
            "age of the oldest value, collections skipped",
            f"{numbers['oldest_seconds']:.2f} s, {numbers['ticks_skipped']}",
        ),
        ("exporter: CPU of a core, memory", f"{percent(ours, 0)}, {ours_mib:.0f} MiB"),
        ("Prometheus: CPU of a core, memory", f"{percent(theirs, 0)}, {theirs_mib:.0f} MiB"),
    ]
    return Shown(table(("one process serves all nodes to one Prometheus", ""), rows))
