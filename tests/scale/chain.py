"""Measures how long a change takes through chains of rules, in a real vmalert on a real VictoriaMetrics."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

from tests import ROOT
from tests.rules.needed import bundled
from tests.support.tools import NEWER, free_port, until
from tests.support.victoria import LOOK_BACK, Victoria, running, vmalert

# Its alert reads the last series of the longest chain.
INJECTED, LAST = "GpuCollectiveStall", "gpu:stalls:holds"
SCRAPE_INTERVAL = "15s"
# Groups that have not been evaluated. Those that are evaluated once an hour start late.
_WAITING = re.compile(r'^vmalert_iteration_total\{group="(?!gpu-reports|gpu-1h)[^}]*\} 0$', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class _Engine:
    """A store, and a vmalert that evaluates rules on it."""

    store: Victoria
    metrics: str

    def is_ready(self) -> bool:
        """Return whether each group has been evaluated."""
        with urlopen(self.metrics, timeout=60) as answer:
            text = str(answer.read(), "utf-8")
        return "vmalert_iteration_total" in text and not _WAITING.search(text)

    def recorded(self) -> Iterator[str]:
        """Yield the names of the recorded series that queries see now."""
        query = 'count by (__name__) ({__name__=~"[a-z]+:.+:.+"})'
        for each in self.store.api("query", query=query, nocache="1")["result"]:
            yield each["metric"]["__name__"]


def delays(folder: Path) -> Mapping[str, Mapping[str, float]]:
    """Return how many seconds after a faulty node has started queries see each recorded series, by file of rules."""
    port = free_port()
    serve = f"serve --source simulated --inject {INJECTED} --address 127.0.0.1:{port} --log-level error"
    rules = {
        "alerts": sorted((ROOT / "alerts").glob("*.yaml")),
        "vmalert": sorted(bundled(folder, "vmalert").iterdir()),
    }
    with ExitStack() as stack:
        engines = {
            name: stack.enter_context(_engine(folder / f"{name}-engine", port, files)) for name, files in rules.items()
        }
        until(lambda: all(engine.is_ready() for engine in engines.values()), 120, "the evaluation of each group", 1.0)
        command = [sys.executable, "-m", "gpu_exporter", *serve.split()]
        stack.enter_context(running(command, folder / "exporter.log", f"http://127.0.0.1:{port}/healthz"))
        start = time.monotonic()
        found: Mapping[str, dict[str, float]] = {name: {} for name in engines}

        def complete() -> bool:
            for name, engine in engines.items():
                for series in engine.recorded():
                    found[name].setdefault(series, time.monotonic() - start)
            return all(LAST in of_engine for of_engine in found.values())

        until(complete, 1200, f"a sample of {LAST}", every=1.0)
    return found


@contextmanager
def _engine(folder: Path, port: int, rules: Sequence[Path]) -> Iterator[_Engine]:
    """Scrape a port of this machine into a store, and evaluate rules on it."""
    folder.mkdir()
    config, address = folder / "scrape.json", f"127.0.0.1:{free_port()}"
    job = {"job_name": "gpu", "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}
    config.write_text(json.dumps({"global": {"scrape_interval": SCRAPE_INTERVAL}, "scrape_configs": [job]}))
    command = [
        str(NEWER / "victoria-metrics"),
        f"-storageDataPath={folder / 'store'}",
        f"-httpListenAddr={address}",
        f"-promscrape.config={config}",
        LOOK_BACK,
    ]
    with (
        running(command, folder / "victoria.log", f"http://{address}/health") as pid,
        vmalert(folder, f"http://{address}", rules) as (_, metrics),
    ):
        yield _Engine(Victoria(pid, f"http://{address}"), metrics)
