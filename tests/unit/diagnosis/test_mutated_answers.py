"""Mutated responses of exporters and Prometheus are judged, or rejected with ValueError, and nothing else."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable

import pytest

from gpu_exporter.catalogue.signals import SIGNALS
from gpu_exporter.diagnosis.diagnose import diagnose
from gpu_exporter.diagnosis.remote_scrapes import QueryAnswer, scrapes_of
from gpu_exporter.diagnosis.report import as_dict, lines
from gpu_exporter.diagnosis.scrape import LARGEST, Scrape
from gpu_exporter.diagnosis.text_format import parsed
from gpu_exporter.diagnosis.window import FAMILIES, seen
from gpu_exporter.io.decoding import json_as

ROUNDS = int(os.environ.get("FUZZ_ROUNDS", "40"))
NAMES = FAMILIES
ODD = ("NaN", "+Inf", "-Inf", "1e308", "-1e308", "1e-320", "0", "-1", "9223372036854775794", "1e30")
INVALID = ("0x1", "", "one", "1e")
TIMES = (0.0, -1.0, 1e300, 1e-300, 1000.0, 1000.0000000001, 1e10, 1e11)
TEXT = b'\x00\xff\x1b[]{}",:=#\\\n\r\t 0159.eE+-aN'


def labels(of: random.Random) -> dict[str, str]:
    """Draw the labels of a GPU, some of them odd."""
    result = {"UUID": f"GPU-{of.randrange(3)}", "gpu": "0", "le": of.choice(("0.01", "700", "+Inf", "NaN", "-Inf"))}
    for name in ("gpu", "pod", "GPU_I_ID", "xid", "cluster", "Hostname"):
        if of.random() < 0.2:
            result[name] = of.choice(("9" * 5000, "\x1b[31m", "a\nb", "-1" * 500, "", "٣", "79"))
    return result


def value(of: random.Random) -> str:
    if of.random() < 0.0005:
        return of.choice(INVALID)
    return of.choice(ODD) if of.random() < 0.3 else repr(of.uniform(-1, 100))


def text(of: random.Random) -> str:
    """Draw a /metrics response."""
    rows = []
    for name in of.choices(NAMES, k=60):
        pairs = (
            '{}="{}"'.format(key, text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n"))
            for key, text in labels(of).items()
        )
        rows.append(f"{name}{{{','.join(pairs)}}} {value(of)}\n")
    return "".join(rows)


def matrix(of: random.Random) -> str:
    """Draw a response of Prometheus."""
    series = [
        {
            "metric": labels(of) | {"__name__": name},
            "values": [
                [of.choice(TIMES) if of.random() < 0.0005 else 1000.0 + 15 * place, value(of)] for place in range(4)
            ],
        }
        for name in of.choices(NAMES, k=60)
    ]
    return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": series}})


def mutated(content: str, of: random.Random) -> bytes:
    """Draw a content with bytes changed, cut out or repeated; a third of all are unchanged."""
    raw = bytearray(content.encode())
    for _ in range(of.choice((0, 1, 4))):
        place = of.randrange(len(raw))
        match of.randrange(4):
            case 0:
                raw[place] = of.choice(TEXT)
            case 1:
                del raw[place : place + of.randrange(200)]
            case 2:
                raw[place:place] = raw[place : place + of.randrange(200)]
            case _:
                raw[place:place] = bytes(of.choices(TEXT, k=4))
        if not raw:
            return b"x"
    return bytes(raw)


def of_prometheus(of: random.Random) -> list[Scrape]:
    return scrapes_of(json_as(QueryAnswer, mutated(matrix(of), of)))


def of_exporter(of: random.Random) -> list[Scrape]:
    return [Scrape(1000.0 + 15 * place, parsed(mutated(text(of), of).decode())) for place in range(3)]


@pytest.mark.slow
@pytest.mark.parametrize("scrapes", [of_prometheus, of_exporter])
@pytest.mark.parametrize("seed", range(ROUNDS))
def test_mutated_answers(scrapes: Callable[[random.Random], list[Scrape]], seed: int) -> None:
    """If accepted, values are finite and text is printable, in bounded time."""
    began = time.process_time()
    try:
        scraped = scrapes(random.Random(seed))
    except ValueError:
        return
    window = seen(scraped, {}, job="job")
    for of_signal in window.signals.values():
        assert all(abs(number) <= LARGEST for points in of_signal.values() for _, number in points)
    found = diagnose(window)
    assert all(line.isprintable() for line in lines(found, every=True, verbose=True))
    json.dumps(as_dict(found), allow_nan=False)
    assert time.process_time() - began < 5


def test_all_signals_are_reached() -> None:
    """The inputs have every family that a signal reads."""
    assert {read.series for signal in SIGNALS for read in signal.definitions if hasattr(read, "series")} <= set(NAMES)
