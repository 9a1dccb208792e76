"""Public dashboards, rules and autoscalers for dcgm-exporter find their metrics and labels."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from gpu_exporter.catalogue.dcgm_exporter.names import RENAMED
from tests import ROOT
from tests.conftest import Serve
from tests.support.fakes.driver import FakeDriver
from tests.support.fakes.kubelet import FakeKubelet, given
from tests.support.owners import POWER, UUID
from tests.support.public_expressions import Answer, Pages, Reason, expressions, labels_by_name, table

PAGE = ROOT / "docs" / "migration.md"
CORRECT_TEXT = "fix: correct the number in the text of docs/migration.md"
BEGIN, END = "<!-- begin of the table by source -->\n", "<!-- end of the table by source -->\n"
# The labels that dcgm-exporter 4.8.2 puts on its series. All others come from Prometheus or another exporter.
DCGM_EXPORTER_LABELS = {
    *("gpu", "UUID", "pci_bus_id", "device", "modelName", "GPU_I_PROFILE", "GPU_I_ID", "Hostname"),
    *("DCGM_FI_DRIVER_VERSION", "namespace", "pod", "container", "hpc_job", "err_code", "err_msg"),
}
# In MIG mode gpu-exporter has clocks, power and temperature only on the whole GPU: docs/migration.md.
OF_INSTANCES = frozenset({"GPU_I_PROFILE", "GPU_I_ID"})


@pytest.fixture
def pages(serve: Serve, driver: FakeDriver, tmp_path: Path) -> Pages:
    """The pages of an H200, each after two collections, so that profiling metrics have values."""

    def page(*arguments: str) -> str:
        exporter = serve("--interval", "100ms", *arguments, env=driver.environment)
        return exporter.until(lambda page: bool(page.values("gpu_sm_active_seconds_total"))).text

    default, full = page(), page("--metrics", "full")
    known = {name.upper() for name in labels_by_name(full)}
    names = dict.fromkeys(name for expression in expressions() for name in expression.metrics)
    rest = [name for name in names if name.upper() not in known]
    fields = tmp_path / "fields.csv"
    fields.write_text("".join(f"{name}, gauge, x\n" for name in (*rest, *map(str.upper, rest))))
    return Pages(default, full, page("--collectors", str(fields)))


def test_what_nvml_can_answer_is_answered(pages: Pages) -> None:
    """Most of them by the default set. Every other expression has a reason, which is never the exporter's."""
    found = [(expression, pages.answer(expression), pages.reasons(expression)) for expression in expressions()]
    only_dcgm = {metric for *_, why in found for metric, reason in why.items() if reason is Reason.NEEDS_DCGM}

    assert len(found) > 950
    assert sum(answer is Answer.DEFAULT for _, answer, _ in found) > 0.84 * len(found)
    assert [expression for expression, answer, why in found if (answer is Answer.NOT) != bool(why)] == []
    assert {metric for metric in only_dcgm if not metric.startswith("DCGM_FI_DEV_NVLINK_COUNT_")} == {
        "DCGM_EXP_GPU_HEALTH_STATUS"
    }


def test_their_labels_are_there(serve: Serve, node: FakeDriver, kubelet: FakeKubelet, tmp_path: Path) -> None:
    """With owners from kubelet and Slurm. The chart's ServiceMonitor copies the owner to `exported_…` labels."""
    jobs = tmp_path / "jobs"
    jobs.mkdir()
    (jobs / "1").write_text("101\n")
    kubelet.pods = [given("train-0", UUID[0])]
    own = ("--kubernetes", "--pod-resources-socket", str(kubelet.socket), "--hpc-job-mapping-dir", str(jobs))
    exporter = serve(*own, "--metrics", "full", "--interval", "200ms", env=node.environment)
    page = exporter.until(
        lambda page: bool(
            page.values(POWER, hpc_job="101")
            and page.values(POWER, pod="train-0")
            and page.values("DCGM_FI_PROF_SM_ACTIVE", GPU_I_ID="5")
        )
    )
    labels = {name.upper(): found for name, found in labels_by_name(page.text).items()}
    copied = copied_labels()
    missing = set()
    for expression in expressions():
        for metric in expression.metrics:
            wanted = {copied.get(label, label) for label in expression.labels} & DCGM_EXPORTER_LABELS
            if metric.upper() in labels:
                missing |= {(metric, label) for label in wanted - labels[metric.upper()] - OF_INSTANCES}

    assert missing == set()
    assert set(labels["DCGM_FI_PROF_SM_ACTIVE"]) >= OF_INSTANCES
    assert copied == {f"exported_{label}": label for label in ("namespace", "pod", "container")}


def copied_labels() -> dict[str, str]:
    """Return the labels that the chart's ServiceMonitor adds by default, with the labels that they copy."""
    monitor = yaml.safe_load((ROOT / "deploy/kubernetes/monitored/servicemonitor.yaml").read_text())
    rules = [rule for endpoint in monitor["spec"]["endpoints"] for rule in endpoint.get("metricRelabelings", ())]
    return {
        rule["targetLabel"]: rule["sourceLabels"][0] for rule in rules if rule["targetLabel"].startswith("exported_")
    }


@pytest.mark.drift
def test_the_table_by_source_is_current(pages: Pages, request: pytest.FixtureRequest) -> None:
    """docs/migration.md has the table for the metrics and the expressions of today."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    current, _, after = rest.partition(END)
    rendered = f"\n{table(pages)}\n"
    if request.config.getoption("--update-golden"):
        PAGE.write_text(f"{before}{BEGIN}{rendered}{END}{after}")
        current = rendered

    assert current == rendered, (
        "fix: read the diff of docs/migration.md after"
        " `pytest --update-golden tests/e2e/pipeline/test_public_expressions.py`"
    )


@pytest.mark.drift
def test_the_numbers_in_the_text_are_those_of_the_table() -> None:
    """Answered expressions, and those whose metrics `--schema si` renames."""
    text = " ".join(PAGE.read_text().split())
    row = text.partition("| **all** |")[2].partition("| |")[0]
    total, *_, missing = map(int, re.findall(r"\d+", row))
    renamed = sum(not RENAMED.keys().isdisjoint(map(str.upper, each.metrics)) for each in expressions())

    assert f"{total - missing} of {total} expressions" in text, CORRECT_TEXT
    assert f"{renamed} of the {total} public expressions" in text, CORRECT_TEXT
