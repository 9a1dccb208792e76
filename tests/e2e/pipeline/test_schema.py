"""`--schema`: the same GPUs with old and new metric names give the same signals."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest

from gpu_exporter.catalogue.dcgm_exporter.names import RENAMED
from gpu_exporter.catalogue.signals import SIGNALS
from tests import ROOT
from tests.conftest import Page, Serve, run
from tests.support.prometheus import Prometheus, scraping
from tests.support.tools import until

SCHEMAS = ("classic", "si")
# Played so slowly that two servers show the same moment; counters still grow.
REPLAY = ("--source", "replay", "--recording", "h200_x2_ddp", "--speed", "0.000001", "--interval", "500ms")
# Only DCGM's names, so that no signal comes from `gpu_*` counters, which are the same in both.
ONLY_DCGM = {"source_labels": ["schema", "__name__"], "regex": ".*-only;gpu_.*", "action": "drop"}


def rates_at_once(folder: Path) -> Path:
    """Return the recording rules with seconds instead of minutes."""
    text = (ROOT / "alerts" / "recording.yaml").read_text()
    path = folder / "recording.yaml"
    path.write_text(re.sub(r"offset \d+[hm]", "offset 3s", re.sub(r"\[2m\]", "[3s]", text)))
    return path


def recorded(prometheus: Prometheus, schema: str) -> dict[tuple[str, ...], float]:
    """Return every signal of the scrapes with this `schema`, by name and device."""
    names = "|".join(sorted(signal.record for signal in SIGNALS))
    found = prometheus.api("query", query=f'{{__name__=~"{names}", cluster="{schema}"}}')["result"]
    keys = ("__name__", "UUID", "GPU_I_ID", "node", "gpu", "modelName", "xid")
    return {
        tuple(each["metric"].get(key, "") for key in keys): float(each["value"][1])
        for each in found
        if each["metric"]["__name__"] != "gpu:read_age:seconds"
    }


def same(left: dict[tuple[str, ...], float], right: dict[tuple[str, ...], float], within: float) -> bool:
    """Return whether both have the same signals of the same devices, with values within a tolerance."""
    return left.keys() == right.keys() and all(
        math.isclose(value, right[key], rel_tol=within, abs_tol=1e-9) for key, value in left.items()
    )


def test_rules_give_the_same_signals(serve: Serve, tmp_path: Path) -> None:
    """A real Prometheus with the committed rules scrapes a replay in both schemas: each GPU has the same signals.

    So it has without `gpu_*` families.
    """
    servers = {schema: serve(*REPLAY, "--metrics", "full", "--schema", schema) for schema in SCHEMAS}
    targets = [
        {"targets": [f"127.0.0.1:{server.port}"], "labels": {"cluster": cluster, "schema": cluster}}
        for schema, server in servers.items()
        for cluster in (schema, f"{schema}-only")
    ]
    settings = {"static_configs": targets, "metric_relabel_configs": [ONLY_DCGM]}
    with scraping(tmp_path, "1s", settings, rule_files=[rates_at_once(tmp_path)]) as prometheus:

        def settled() -> bool:
            found = {cluster: recorded(prometheus, cluster) for cluster in ("classic", "si", "classic-only", "si-only")}
            signals = {key[0] for key in found["si-only"]}
            # All in one look: after a late scrape, rates are missing for a moment.
            return (
                len(signals) > 30
                and {key[0] for key in found["si"]} > signals
                and "gpu:energy:joules_per_second" in signals
                and same(found["classic-only"], found["si-only"], 1e-6)
                and same(found["classic"], found["si"], 0.01)  # rates of counters depend on the time of scrapes
            )

        until(settled, timeout=60, what="the same signals in both schemas")


def whole(page: Page) -> bool:
    """Return whether both GPUs were read twice and thus have all series."""
    return len(page.values("gpu_sm_active_seconds_total")) == 2


def test_a_page_in_base_units(serve: Serve) -> None:
    """Nothing that 4.9 renamed has its old name; `gpu_*` families and JSON do not change."""
    pages = {schema: serve(*REPLAY, "--metrics", "full", "--schema", schema).until(whole) for schema in SCHEMAS}
    names = {schema: {name for name, _, _ in page.samples} for schema, page in pages.items()}

    assert names["si"] & set(RENAMED) == set()
    assert {name for name in names["si"] if name.startswith("gpu_")} == {
        name for name in names["classic"] if name.startswith("gpu_")
    }
    # prometheus_client's text parser adds a suffix to counters; the others are renamed families.
    plain = {schema: {name.removesuffix("_total") for name in found} for schema, found in names.items()}
    assert {RENAMED.get(name, (name, 1))[0] for name in plain["classic"]} == plain["si"]
    for _, labels, _ in (each for each in pages["si"].samples if each[0].startswith("DCGM_")):
        assert "hostname" in labels
        assert "DCGM_FI_SYSTEM_DRIVER_VERSION" in labels
        assert not {"Hostname", "DCGM_FI_DRIVER_VERSION"} & set(labels)
    for gpu in ("0", "1"):
        new, old = pages["si"], pages["classic"]
        total = old.value("DCGM_FI_DEV_FB_TOTAL", gpu=gpu)
        assert new.value("DCGM_FI_DEV_FB_CAPACITY_BYTES", gpu=gpu) == pytest.approx(total * 2**20)
        assert new.value("DCGM_FI_DEV_MEMORY_CLOCK_HERTZ", gpu=gpu) == pytest.approx(3201e6)


def test_once_with_a_schema() -> None:
    """The text of `once` has the schema's names, its JSON the catalogue's."""
    page = run("once", *REPLAY[:4], "--schema", "si").stdout
    as_json = json.loads(run("once", *REPLAY[:4], "--schema", "si", "--json").stdout)

    assert "DCGM_FI_DEV_BOARD_POWER_WATTS{" in page
    assert "DCGM_FI_DEV_POWER_USAGE{" not in page
    assert "DCGM_FI_DEV_POWER_USAGE" in as_json["gpus"][0]["samples"]


def test_an_unknown_schema_is_one_line() -> None:
    """The error lists the schemas."""
    result = run("once", *REPLAY[:4], "--schema", "sl")

    assert result.returncode == 2
    assert result.stderr == (
        "gpu-exporter: Invalid value for '--schema' (env var: 'GPU_EXPORTER_SCHEMA'): 'sl' is not one of classic, si\n"
    )
