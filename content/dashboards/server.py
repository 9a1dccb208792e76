"""The Server dashboard: is an inference server fast enough, and what limits it?"""

from __future__ import annotations

from collections.abc import Sequence

from content.dashboards import queries as q
from content.dashboards import why
from content.dashboards.frame import ORANGE, About, BoardRow, ColourStep
from content.dashboards.graphs import GraphStyle, Legend, dashed, hues, lines, time_shares
from content.dashboards.panels import class_timeline, number, numbers
from content.dashboards.queries import Query
from content.dashboards.tables import Columns, table
from gpu_exporter.alerting import serving
from gpu_exporter.alerting.aggregates import Aggregate
from gpu_exporter.alerting.allocation import POD_REQUESTS
from gpu_exporter.alerting.boards import SERVER
from gpu_exporter.alerting.rules import SLOW
from gpu_exporter.catalogue import signals as s
from gpu_exporter.catalogue.failure_modes.mode import FailureMode

BOARD = SERVER
TILES = 3
LIMIT = "recommended limit"
NO_SERVER = "no inference server, or not scraped"
NEEDED = " From vLLM, SGLang, TGI or Triton, if Prometheus scrapes it."
_QUANTILES = ((0.5, "median"), (0.95, "95 %"))
# The cache of keys and values from which on a server makes requests wait.
FULL_CACHE = 0.9


def rows(modes: Sequence[FailureMode]) -> list[BoardRow]:
    """Return the rows: requests and latency, batch size, GPUs; then their fabric and profiles."""
    return [
        BoardRow("Is the server fast enough?", [*_numbers(), *_requests()]),
        BoardRow("Which batch size suits it?", _batches()),
        BoardRow("What limits its GPUs?", _gpus()),
        why.profile_row(BOARD),
    ]


def _about(what: str, good: str, cure: str) -> About:
    return About(what + NEEDED, good, cure)


def _pods() -> str:
    return q.selected(BOARD, POD_REQUESTS)


def _first_token(quantile: float) -> str:
    return serving.first_token(quantile, _pods(), "$__rate_interval")


def _queued() -> str:
    waiting = f"{_pods()} - on (cluster, namespace, pod) {q.selected(BOARD, serving.BATCH)}"
    # They are recorded one after the other.
    return f"(clamp_min({waiting}, 0) or on (cluster, namespace, pod) 0 * {_pods()})"


def _numbers() -> list[object]:
    return [
        numbers(
            "Requests",
            _about("Requests that are computed together, and those that wait.", "none waits.", "add a replica."),
            Query(f"sum({q.selected(BOARD, serving.BATCH)})", "running", "short"),
            Query(f"sum({_queued()})", "waiting", "short"),
            height=TILES,
        ),
        numbers(
            "Time to first token",
            _about(
                "From a request to its first token: median and 95th percentile.",
                "as promised to users.",
                "requests that wait: add a replica. Long prompts: split the prefill into chunks.",
            ),
            *(Query(f"max({_first_token(each)} >= 0)", name, "s", interval=SLOW) for each, name in _QUANTILES),
            height=TILES,
        ),
        number(
            "Tokens per second",
            _about(
                "Generated tokens (Triton: inferences) per second.", "steady under load.", "see what limits the GPUs."
            ),
            Query(f"sum({q.selected(BOARD, serving.OUTPUT)})", "", "short"),
            height=TILES,
        ),
        number(
            "Time per token",
            _about(
                "Mean time for each generated token of a request (Triton: for each batch).",
                "as promised to users.",
                "limit the batch size, and add replicas.",
            ),
            Query(f"max({q.selected(BOARD, serving.LATENCY)})", "", "s"),
            height=TILES,
        ),
        number(
            "Cache in use",
            _about(
                "Share of the cache of keys and values that is in use; of several pods, the highest.",
                "below 90 %.",
                "when it is full, requests wait or are computed again: give it more memory, or add replicas.",
            ),
            Query(f"max({serving.cache_use(_pods())})", "", "percentunit"),
            alarm=ColourStep(FULL_CACHE, ORANGE),
            height=TILES,
        ),
        number(
            "Recommended batch limit",
            _about(
                "The batch size from which twice the batch raised latency more than output during the last day; of "
                "several pods, the lowest.",
                "the batch is smaller.",
                "limit the batch there (vLLM: --max-num-seqs). Without a value, larger batches still pay.",
            ),
            Query(f"min({q.selected(BOARD, serving.KNEE)})", "", "short"),
            height=TILES,
        ),
    ]


def _requests() -> list[object]:
    requests = [
        Query(q.selected(BOARD, serving.BATCH), "{{pod}} running", "short"),
        Query(_queued(), "{{pod}} waiting", "short"),
    ]
    latencies = [
        Query(f"{_first_token(each)} >= 0", f"{{{{pod}}}} {name}", "s", interval=SLOW) for each, name in _QUANTILES
    ]
    output = [
        Query(q.selected(BOARD, serving.OUTPUT), "{{pod}} tokens per second", "short"),
        Query(q.selected(BOARD, serving.LATENCY), "{{pod}} time per token", "s"),
    ]
    return [
        lines(
            title,
            _about(*about),
            queries,
            GraphStyle(Legend.LIST, overrides=hues(queries), empty=NO_SERVER),
            link=None,
        )
        for title, about, queries in (
            (
                "Requests running and waiting",
                ("Requests that are computed together, and those that wait.", "none waits.", "add a replica."),
                requests,
            ),
            (
                "Time to the first token",
                (
                    "From a request to its first token: median and 95th percentile.",
                    "steady.",
                    "it rises with the requests that wait: add a replica.",
                ),
                latencies,
            ),
            (
                "Output, and time per token",
                (
                    "Left: generated tokens (Triton: inferences) per second. Right: mean time per token (per batch).",
                    "output grows with the requests, latency hardly does.",
                    "latency grows and output does not: limit the batch size.",
                ),
                output,
            ),
        )
    ]


def _batches() -> list[object]:
    def mean(aggregate: Aggregate, name: str) -> Query:
        return Query(f"avg_over_time({q.selected(BOARD, aggregate)}[$__range])", "", q.unit(aggregate), name)

    sizes = [
        Query(q.selected(BOARD, each), f"{{{{pod}}}} {name}", q.unit(each), name)
        for each, name in ((serving.BATCH, "batch size"), (serving.KNEE, LIMIT))
    ]
    return [
        table(
            "Output and latency by batch size",
            _about(
                "*output/s*: tokens per second, inferences per second of Triton. *time/token*: latency of each token, "
                "or of each batch of Triton. Means over the time range, by batch size (powers of two).",
                "more output with each size.",
                "where latency grows more than output, a larger batch only makes requests wait.",
            ),
            [mean(serving.OF_SIZE, "output/s"), mean(serving.LATENCY_OF_SIZE, "time/token")],
            Columns(("pod", "batch")),
            empty=NO_SERVER,
        ),
        lines(
            "Batch size and its recommended limit",
            _about(
                "The batch size, and the one from which twice the batch raised latency more than output during the "
                "last day: the recommended limit.",
                "a batch size below the limit.",
                "limit the batch there (vLLM: --max-num-seqs), and add replicas. Without a limit, larger batches "
                "still pay, or were not seen.",
            ),
            sizes,
            GraphStyle(Legend.LIST, overrides=[*hues(sizes), *dashed(sizes, [LIMIT])], empty=NO_SERVER),
            link=None,
            width=12,
        ),
    ]


def _gpus() -> list[object]:
    activity = [q.query(BOARD, each, name) for each, name in ((s.SM_ACTIVE, "SM"), (s.DRAM_ACTIVE, "memory"))]
    return [
        class_timeline(BOARD, 8),
        time_shares("Time by cause", q.shares_of(BOARD), width=8),
        lines(
            "SM and memory activity",
            About(
                "Share of SMs with a resident warp, and of cycles in which device memory is read or written.",
                "memory above 60 % while tokens are generated.",
                "both low: larger batches, or fewer GPUs.",
            ),
            activity,
            GraphStyle(Legend.NONE, overrides=hues(activity)),
        ),
    ]
