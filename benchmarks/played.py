"""Plays pages of an exporter, scraped at a fixed interval, into the committed rules, by promtool."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.harness import ROOT
from gpu_exporter.diagnosis.scrape import ScrapedSample
from tests.support.tools import BUNDLED, NEWER

RULES = sorted((ROOT / "alerts").glob("*.yaml"))
FIRED = 'group by (alertname, severity, action, gpu) (last_over_time(ALERTS{alertstate="firing"}[1d]))'
LABELS = re.compile(r'(\w+)=\\?"(\w*)\\?"')


def promtool() -> Path | None:
    """Return promtool, if it is installed."""
    there = shutil.which("promtool")
    places = [Path(there)] if there else [folder / "promtool" for folder in (NEWER, BUNDLED)]
    return next((each for each in places if each.is_file()), None)


def fired(program: Path, pages: Sequence[Sequence[ScrapedSample]], every: float) -> Sequence[Mapping[str, str]]:
    """Return the labels alertname, severity, action and gpu of each alert that has fired.

    An empty page is a scrape that failed.

    Raises RuntimeError if promtool refuses the pages or the rules.
    """
    values: dict[str, list[str]] = {}
    for number, page in enumerate(pages):
        for name, labels, value in [*page, ScrapedSample("up", {}, float(bool(page)))]:
            all_labels = {**labels, "job": "gpu-exporter", "instance": "node:9400"}
            series = f"{name}{{{','.join(f'{key}={json.dumps(text)}' for key, text in all_labels.items())}}}"
            of_series = values.setdefault(series, [])
            of_series += ["stale" if of_series else "_"] * (number - len(of_series)) + [f"{value:.15g}"]
    for of_series in values.values():
        of_series += ["stale"] * (len(pages) - len(of_series))
    test = {
        "interval": f"{every:g}s",
        "input_series": [{"series": series, "values": " ".join(each)} for series, each in values.items()],
        "promql_expr_test": [{"expr": FIRED, "eval_time": f"{(len(pages) - 1) * every:g}s"}],
    }
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        json.dump({"rule_files": list(map(str, RULES)), "evaluation_interval": f"{every:g}s", "tests": [test]}, file)
        file.flush()
        answer = subprocess.run([program, "test", "rules", file.name], capture_output=True, text=True)
    output = answer.stdout + answer.stderr
    if answer.returncode and "got:" not in output:
        raise RuntimeError(f"promtool: {output.strip()}")
    found = output.partition("got:")[2]
    return [dict(LABELS.findall(each)) for each in re.findall(r"\{([^}]*)\}", found)]
