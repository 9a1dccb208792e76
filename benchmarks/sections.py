"""What a result becomes: Markdown tables, and plots by name. A function for each benchmark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks import plots
from benchmarks.cost import SETS

Numbers = Mapping[str, Any]


@dataclass(frozen=True)
class Shown:
    """Markdown, and SVG files by name (less the extension), which stand below it."""

    text: str
    plots: Mapping[str, str] = field(default_factory=dict)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; the first column is text."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines) + "\n"


def percent(share: float, digits: int = 1) -> str:
    """0.0123 -> 1.2 %."""
    return f"{share * 100:.{digits}f} %"


def _by(count: int, thing: str) -> str:
    return f"{count} {thing}" + ("s" if count != 1 else "")


def _cells(each: Numbers) -> tuple[str, ...]:
    """What an exporter takes beside the CPU of its loop."""
    return (
        f"{each['rss_mib']:.0f} MiB",
        f"{each['samples']}",
        f"{each['body_bytes'] / 1024:.0f} / {each['gzip_bytes'] / 1024:.0f} KiB",
        _latency(each["alone"]),
        _latency(each["ten"]),
        f"{each['scrape_cpu_ms']:.2f} ms",
        f"{each['rendering_ms']:.1f} ms",
        _tick(each["allocations"]),
    )


def cost(numbers: Numbers) -> Shown:
    """One row an exporter; where it was measured with fewer GPUs, too, what it would take with more."""
    found, boards = numbers["rows"], max(each["gpus"] for each in numbers["rows"])
    rows = [
        (
            named(each["name"]) + ("" if each["gpus"] == boards else f", {each['gpus']} of these GPUs"),
            percent(each["cpu"], 2),
            *_cells(each),
            "" if each["ticks_skipped"] is None else f"{each['ticks_skipped']}",
        )
        for each in found
    ]
    head = ("exporter", "CPU of a core", "memory", "samples", "body / gzip", "one scraper: p50 / p99 / worst")
    more = ("ten at once", "CPU of a scrape", "`prometheus_client`", "a tick takes", "ticks skipped")
    whole = [each for each in found if each["gpus"] == boards]
    names, what = [each["name"] for each in whole], _by(boards, "GPU")
    return Shown(
        table((*head, *more), rows) + _extrapolated(found, boards),
        {
            "cpu": plots.bars(f"CPU, {what}", "% of a core", names, {"CPU": _all(whole, "cpu", 100)}, "{:.2f}"),
            "memory": plots.bars(f"Memory, {what}", "MiB", names, {"RSS": _all(whole, "rss_mib")}, "{:.0f}"),
        },
    )


def _extrapolated(found: Sequence[Numbers], boards: int) -> str:
    """What eight GPUs would take if each further one takes as much as the last measured; empty if none was left out."""
    most = {each["name"]: each for each in found if each["gpus"] == boards}
    rows = []
    for few in (each for each in found if each["gpus"] < boards and each["name"] in most):
        many = most[few["name"]]
        cpu, mib = ((many[key] - few[key]) / (boards - few["gpus"]) for key in ("cpu", "rss_mib"))
        eight = (many["cpu"] + (8 - boards) * cpu, many["rss_mib"] + (8 - boards) * mib)
        rows.append(
            (named(few["name"]), percent(cpu, 2), f"{mib:.1f} MiB", percent(eight[0]), f"{eight[1]:.0f} MiB"),
        )
    head = ("**not measured, but extrapolated**", "CPU, each further GPU", "memory", "CPU, eight", "memory, eight")
    return "\n" + table(head, rows) if rows else ""


def named(row: str) -> str:
    """The row of `benchmarks.cost` for people."""
    name, _, interval = row.partition("@")
    if name not in SETS:
        return name
    return f"gpu-exporter, {name}, {interval.replace('ms', ' ms') or '1 s'}"


def _latency(found: Mapping[str, float]) -> str:
    return " / ".join(f"{found[name]:.1f}" for name in ("p50", "p99", "worst")) + " ms"


def _tick(allocations: Mapping[str, float] | None) -> str:
    return f"{allocations['peak_kib']:.0f} KiB" if allocations else ""


def _all(rows: Sequence[Numbers], key: str, scale: float = 1.0) -> list[float]:
    return [each[key] * scale for each in rows]


def cost_stand_in(numbers: Numbers) -> Shown:
    """One row for each number of GPUs, whole or divided, and set of metrics."""
    found = numbers["rows"]
    rows = [
        (
            f"{each['gpus']}{' in MIG mode' if each['mig'] else ''}, {each['name']}",
            percent(each["cpu"]),
            *_cells(each),
        )
        for each in found
    ]
    head = ("GPUs, metrics", "CPU of a core", "memory", "samples", "body / gzip", "one scraper: p50 / p99 / worst")
    counts = sorted({each["gpus"] for each in found})
    kinds = {f"{each['name']}{', MIG' if each['mig'] else ''}": (each["name"], each["mig"]) for each in found}

    def over(key: str, scale: float = 1.0) -> dict[str, list[float | None]]:
        values = {(each["name"], each["mig"], each["gpus"]): each[key] * scale for each in found}
        return {label: [values.get((*kind, count)) for count in counts] for label, kind in kinds.items()}

    labels = [str(count) for count in counts]
    return Shown(
        table((*head, "ten at once", "CPU of a scrape", "`prometheus_client`", "a tick takes"), rows),
        {
            "cpu": plots.lines("CPU by number of GPUs", "% of a core", labels, over("cpu", 100), "{:.1f}"),
            "scrape": plots.lines(
                "CPU of rendering with prometheus_client", "ms", labels, over("rendering_ms"), "{:.1f}"
            ),
        },
    )


def perturbation(numbers: Numbers) -> Shown:
    """One row for each workload and condition."""
    found = numbers["workloads"]
    rows = [
        (
            name if condition == "noise" else "",
            "nothing, and nothing again" if condition == "noise" else condition,
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
        table(("workload", "beside it", "slower by", "95 %: by less than", "pairs"), rows),
        {"bounds": plots.bars("Slowdown: upper bound of 95 %", "%", list(found), uppers, "{:.2f}")},
    )


def stalls(numbers: Numbers) -> Shown:
    """Answers beside the truth; what gauges showed; the distribution of power."""
    checks = [
        (each["what"], f"{each['answer']:.3f}", f"{each['truth']:.3f}", f"{each['tolerance']:.3f}", _yes(each["good"]))
        for each in numbers["checks"]
    ]
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
    title = f"Board power by Prometheus alone; the limit is {numbers['limit']:g} W"
    return Shown(
        table(("from Prometheus, scraped every 15 s", "answer", "truth", "may differ by", "kept"), checks)
        + "\nSM activity is a share of the SMs' cycles, which are faster at rest than at work at the power limit:\n"
        "a window of both counts rest for more than its time.\n\n"
        + table(("the counters, read", "SM active", "graphics engine active"), means)
        + "\nWhat the gauges of the same scrapes showed, ours and the peer's:\n\n"
        + table(("gauge", "lowest", "mean", "highest", "scrapes"), gauges),
        {"power": plots.bars(title, "% of the time", labels, {"in the bucket up to so many watts": shares}, "{:.1f}")},
    )


def _yes(value: bool) -> str:
    return "yes" if value else "**no**"


def ground_truth(numbers: Numbers) -> Shown:
    """One row for each workload and GPU."""
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
    """One row."""
    row = (
        f"{numbers['steps']}",
        f"{numbers['without_ms']:.3f} ms",
        f"{numbers['with_ms']:.3f} ms",
        percent(numbers["slowdown"], 2),
        f"{numbers['read_ms']:.2f} ms",
    )
    return Shown(table(("steps of each kind", "without", "with", "slower by", "a read takes"), [row]))


def nvml_stress(numbers: Numbers) -> Shown:
    """One row."""
    died = sum(code != 0 for code in numbers["exit_codes"])
    row = (f"{numbers['processes']}", f"{numbers['gpus']}", f"{numbers['seconds']:g} s", f"{died}")
    return Shown(table(("processes", "threads each", "time", "died"), [row]))


def exposition(numbers: Numbers) -> Shown:
    """Ours, theirs, ratio."""
    what = f"{_by(numbers['gpus'], 'GPU')}, {numbers['samples']} samples, {numbers['body_bytes'] / 1000:.0f} kB"
    rows = [
        ("a scrape of gpu-exporter over HTTP", f"{numbers['scrape_cpu_ms']:.2f} ms"),
        ("rendering the same samples with `prometheus_client`", f"{numbers['rendering_ms']:.1f} ms"),
        ("ratio", f"{numbers['ratio']:.0f}"),
    ]
    return Shown(table((what, "CPU"), rows))


def web(numbers: Numbers) -> Shown:
    """Scrapes, and a flood of wrong passwords."""
    scrapes = [(what, f"{e['p50_ms']:.2f} ms", f"{e['cpu_ms']:.2f} ms") for what, e in numbers["scrapes"].items()]
    flood = numbers["flood"]
    answers = ", ".join(f"{number} times {status}" for status, number in flood["answers"].items())
    rows = [
        ("wrong passwords, each another, over ten connections", f"{flood['wrong']}"),
        ("answers", answers),
        ("time and CPU for all of them", f"{flood['seconds']:.1f} s, {flood['cpu_seconds']:.1f} s"),
        ("verified scrapes meanwhile, all served", f"{flood['verified']}"),
        ("of these p50 and slowest", f"{flood['verified_p50_ms']:.1f} ms, {flood['verified_worst_ms']:.1f} ms"),
        ("a right password that comes for the first time is in", f"after {flood['late_seconds']:.1f} s"),
    ]
    return Shown(table(("a scrape", "p50", "CPU"), scrapes) + "\n" + table(("a flood", ""), rows))


def fleet(numbers: Numbers) -> Shown:
    """One row."""
    (ours, ours_mib), (theirs, theirs_mib) = numbers["exporter"], numbers["prometheus"]
    rows = [
        ("nodes, GPUs of each", f"{numbers['nodes']}, {numbers['gpus']}"),
        ("scraped every, for", f"{numbers['scrape_interval']} s, {numbers['seconds']} s"),
        ("scrapes, failed, missed", f"{numbers['scrapes']}, {numbers['failed']}, {numbers['missed']}"),
        ("samples of one round", f"{numbers['samples']}"),
        (
            "a scrape: p50, p99, slowest",
            ", ".join(f"{numbers[key]:.1f} ms" for key in ("p50_ms", "p99_ms", "worst_ms")),
        ),
        ("oldest value, ticks skipped", f"{numbers['oldest_seconds']:.2f} s, {numbers['ticks_skipped']}"),
        ("exporter: CPU of a core, memory", f"{percent(ours, 0)}, {ours_mib:.0f} MiB"),
        ("Prometheus: CPU of a core, memory", f"{percent(theirs, 0)}, {theirs_mib:.0f} MiB"),
    ]
    return Shown(table(("one process that serves all nodes, one Prometheus", ""), rows))
