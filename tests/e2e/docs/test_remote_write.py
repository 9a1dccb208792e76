"""The remote_write example of docs/scale.md: a real VictoriaMetrics answers as Prometheus does."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from tests import ROOT
from tests.conftest import Serve
from tests.rules.promtool import RULES
from tests.scale.cluster import EXTERNAL
from tests.scale.queries import Store, Without, differences
from tests.support.prometheus import scraping
from tests.support.tools import NEWER, until
from tests.support.victoria import victoria

EXAMPLE = re.search(r"<!-- tried by .*? -->\n```yaml\n(.*?)```", (ROOT / "docs/scale.md").read_text(), re.DOTALL)
STORE = "http://victoria-metrics:8428"
GPUS = 4


def values(store: Store, query: str, at: float) -> Mapping[str, float]:
    """Return the result of an instant query by UUID."""
    found = store.api("query", query=query, time=f"{at:.3f}")["result"]
    return {each["metric"]["UUID"]: float(each["value"][1]) for each in found}


def test_victoriametrics_answers_as_prometheus_does(serve: Serve, tmp_path: Path) -> None:
    """Each sample has its time, its value and the external labels; all rules and dashboards read the same."""
    assert EXAMPLE
    exporter = serve("--source", "simulated", "--gpus", str(GPUS), "--interval", "500ms", "--metrics", "full")
    target = {"targets": [f"127.0.0.1:{exporter.port}"], "labels": {"cluster": "a"}}
    # That of Debian 12 takes an external label for the name of a cluster.
    with victoria(tmp_path, program=NEWER / "victoria-metrics") as store:
        assert STORE in EXAMPLE[1]
        example = yaml.safe_load(EXAMPLE[1].replace(STORE, store.url))
        external = example.pop("global")["external_labels"]
        assert external == {"cluster": "a"}
        with scraping(
            tmp_path,
            "1s",
            {"static_configs": [target]},
            rule_files=RULES,
            external_labels=external | EXTERNAL,
            more=example,
        ) as prometheus:
            # Recorded last, from all others.
            what = "cluster:power:watts and on () count_over_time(cluster:power:watts[1m]) > 5"
            until(lambda: prometheus.query(what), 60, "all signals")
            (at, *_) = prometheus.query("timestamp(cluster:power:watts)")
            known = values(prometheus, "gpu:power:watts", at)
            assert len(known) == GPUS

            def arrived() -> bool:
                store.flush()
                return bool(store.api("query", query="timestamp(cluster:power:watts)", time=f"{at + 1}")["result"])

            until(arrived, 30, "the samples in VictoriaMetrics")
            until(lambda: values(store, "gpu:power:watts", at) == pytest.approx(known), 30, "the same values")

            def agree() -> bool:
                problems, full = differences(prometheus, Without(store, EXTERNAL), at)
                print("\n\n".join(problems), full)
                return not problems and full > 200

            # What was sent in parallel may arrive later.
            until(agree, 30, "the same answers", every=1.0)
