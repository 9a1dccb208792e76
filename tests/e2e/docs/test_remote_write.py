"""The remote_write example of docs/scale.md: a real VictoriaMetrics returns what Prometheus recorded."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
import yaml

from tests import ROOT
from tests.conftest import Serve
from tests.support.prometheus import scraping
from tests.support.tools import free_port, tool, until

EXAMPLE = re.search(r"<!-- tried by .*? -->\n```yaml\n(.*?)```", (ROOT / "docs/scale.md").read_text(), re.DOTALL)
STORE = "http://victoria-metrics:8428"


@contextmanager
def victoria(folder: Path) -> Iterator[str]:
    """Run a VictoriaMetrics with its data in `folder`; return its URL."""
    address = f"127.0.0.1:{free_port()}"
    command = [
        str(tool("victoria-metrics")),
        f"-storageDataPath={folder / 'store'}",
        f"-httpListenAddr={address}",
        "-search.latencyOffset=0s",
    ]
    with (folder / "victoria.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)

    def healthy() -> bool:
        try:
            with urlopen(f"http://{address}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    try:
        until(healthy, 30, "VictoriaMetrics' start")
        yield f"http://{address}"
    finally:
        process.kill()
        process.wait()


def values(url: str, query: str, at: float) -> dict[str, float]:
    """Return the result of an instant query by UUID."""
    with urlopen(f"{url}/api/v1/query?{urlencode({'query': query, 'time': at})}", timeout=10) as answer:
        found = json.loads(answer.read())["data"]["result"]
    return {each["metric"]["UUID"]: float(each["value"][1]) for each in found}


def test_victoriametrics_returns_the_same_samples(serve: Serve, tmp_path: Path) -> None:
    """Each sample of a signal has its time, its value and the labels of external_labels."""
    assert EXAMPLE
    exporter = serve("--source", "simulated", "--gpus", "2", "--interval", "500ms")
    with victoria(tmp_path) as store:
        assert STORE in EXAMPLE[1]
        example = yaml.safe_load(EXAMPLE[1].replace(STORE, store))
        assert example.pop("global") == {"external_labels": {"cluster": "a"}}
        with scraping(
            tmp_path,
            "1s",
            {"static_configs": [{"targets": [f"127.0.0.1:{exporter.port}"]}]},
            rule_files=[ROOT / "alerts/recording.yaml"],
            external_labels={"cluster": "a"},
            more=example,
        ) as prometheus:
            here = f"http://127.0.0.1:{prometheus.port}"
            until(lambda: len(prometheus.query("gpu:power:watts")) == 2, 30, "a signal")
            (at, *_) = [
                float(found["value"][1])
                for found in prometheus.api("query", query="timestamp(gpu:power:watts)")["result"]
            ]
            known = values(here, "gpu:power:watts", at)
            assert len(known) == 2
            until(
                lambda: values(store, 'gpu:power:watts{cluster="a"}', at) == pytest.approx(known),
                30,
                "the same values in VictoriaMetrics",
            )
