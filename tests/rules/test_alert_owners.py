"""An alert on a GPU says whose job it hits and which hardware it is, also when both are gone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from gpu_exporter.alerting import rules
from gpu_exporter.alerting.alert_texts import RELATIVE
from gpu_exporter.alerting.groups import RuleGroup, as_text
from gpu_exporter.catalogue.failure_modes import MODES
from gpu_exporter.catalogue.failure_modes.mode import Domain, Scope, Severity
from tests.rules.promtool import BY_NAME, Case, Expect, check
from tests.rules.series import Device, minutes, rank
from tests.rules.test_fleet_faults import series
from tests.scale.engines import vmalert_tool

NOBODY: Mapping[str, str] = {}


def device(node: str, *lasting: tuple[float, bool, bool], job: str = "a", cluster: str = "") -> Device:
    """Return a GPU: for how many minutes it has an owner, and is lost."""
    story = [
        replace(minutes(length, fault="lost" if lost else ""), owner=rank(job) if owned else NOBODY)
        for length, owned, lost in lasting
    ]
    return Device(node, 0, story, target={"cluster": cluster} if cluster else {})


DEVICES = (
    # The pod goes ten minutes after the GPU.
    device("kept", (15, True, False), (10, True, True), (45, False, True)),
    # It went ten minutes before, or long before, or another job came since.
    device("before", (15, True, False), (10, False, False), (45, False, True)),
    device("long", (15, True, False), (25, False, False), (30, False, True)),
    device("free", (25, False, False), (45, False, True)),
    # A job begins on a GPU that is lost already.
    device("late", (25, False, False), (15, False, True), (30, True, True)),
    # The same names in two clusters.
    device("twin", (25, True, False), (45, True, True), cluster="c"),
    device("twin", (25, True, False), (45, True, True), job="b", cluster="d"),
)
OWNERS = (
    ("", "kept", "a"),
    ("", "before", "a"),
    ("", "long", ""),
    ("", "free", ""),
    ("", "late", ""),
    ("c", "twin", "a"),
    ("d", "twin", "b"),
)


def test_a_lost_gpu_keeps_its_last_owner(tmp_path: Path) -> None:
    """As long as the alert fires; its labels never change, so nobody is paged twice."""
    labels = [
        {"cluster": cluster, "node": node, "namespace": "research" if job else "", "workload": job}
        for cluster, node, job in OWNERS
    ]
    by = "group by (cluster, node, namespace, workload)"
    lost = 'alertname="GpuLost", alertstate="firing"'
    fired = [f"{by} (ALERTS{{{lost}}})", f"{by} (last_over_time(ALERTS{{{lost}}}[2h]))"]
    expected = [Expect(text, [(each, 1.0) for each in labels]) for text in fired]
    check(tmp_path, [Case("owners", DEVICES, expected)])


GPU = {"node": "n1", "gpu": "3", "UUID": "GPU-3"}
JOB = {"namespace": "ml", "workload": "llm"}
INFO = ("gpu_info", {**GPU, "serial": "165", "pci_bus_id": "00000000:3B:00.0", "model": "H100"})
OWNER = "gpu:device_owner:info"
PLACE = "GPU 3 on node n1, UUID GPU-3"
NOBODY_KNOWN = "no workload known within the last hour"


@dataclass(frozen=True)
class Said:
    """The series of an alert, others beside it, and some annotations that the alert has then."""

    name: str
    alert: str
    signal: tuple[str, Mapping[str, str]]
    beside: Sequence[tuple[str, Mapping[str, str]] | tuple[str, Mapping[str, str], int]]
    annotations: Mapping[str, str]
    value: int = 1
    # How many minutes the series beside it last.
    lasting: float = 10

    def group(self) -> RuleGroup:
        """Return the rule of the alert with these annotations."""
        rule = rules.alert(BY_NAME[self.alert], {})
        texts = {name: rule["annotations"][name] for name in self.annotations}
        expression = f"{self.signal[0]} > 0"
        return RuleGroup("alert", [{**rule, "expr": expression, "for": "0s", "annotations": texts}])

    def rendered(self) -> Mapping[str, Any]:
        """Return it in promtool's format."""
        name, labels = self.signal
        alert = {
            "exp_labels": {**rules.alert(BY_NAME[self.alert], {})["labels"], **labels},
            "exp_annotations": self.annotations,
        }
        return {
            "name": self.name,
            "interval": "30s",
            "input_series": [
                series(name, labels, [(0, 50)], self.value),
                *(series(*each[:2], [(0, self.lasting)], *each[2:]) for each in self.beside),
            ],
            "promql_expr_test": [],
            "alert_rule_test": [{"eval_time": "2400s", "alertname": self.alert, "exp_alerts": [alert]}],
        }


def required(value: int, action: str) -> Said:
    """Return what the alert on a recovery action says to do."""
    texts = {"description": f"{action}. For the commands, see the section Fix of the runbook."}
    return Said(f"action {value}", "GpuRecoveryActionRequired", ("gpu:recovery_action:action", GPU), (), texts, value)


def faulty_port(device: str, fault: str) -> tuple[str, Mapping[str, str]]:
    """Return the series of a port."""
    return "gpu_nic_faulty_port_info", {**GPU, "device": device, "port": "1", "fault": fault}


SAID = (
    Said(
        "a GPU and its last job, half an hour ago",
        "GpuXidFatal",
        ("gpu:xid_fatal:bool", {**GPU, "xid": "79"}),
        [
            INFO,
            (OWNER, {**GPU, **JOB, "pod": "llm-0"}),
            ("rank:identity:info", {**GPU, **JOB, "rank": "7"}),
            # Of another GPU, and of the same one in another cluster.
            (OWNER, {"UUID": "GPU-4", "workload": "other"}),
            (OWNER, {**GPU, "cluster": "c", "workload": "other"}),
        ],
        {
            "owner": "workload llm, namespace ml, pod llm-0, rank 7",
            "hardware": f"{PLACE}, serial number 165, PCI address 00000000:3B:00.0, H100",
        },
    ),
    Said(
        "the other cluster",
        "GpuXidFatal",
        ("gpu:xid_fatal:bool", {**GPU, "cluster": "c", "xid": "79"}),
        [INFO, (OWNER, {**GPU, **JOB}), (OWNER, {**GPU, "cluster": "c", "workload": "other"})],
        {"owner": "workload other", "hardware": PLACE},
    ),
    Said(
        "nothing known",
        "GpuLost",
        ("gpu:up:bool", GPU),
        [],
        {"owner": NOBODY_KNOWN, "hardware": PLACE, "links": RELATIVE},
    ),
    Said(
        "a job",
        "GpuStragglerStarved",
        ("gpu:starved_straggler:holds", {**GPU, **JOB, "pod": "llm-0"}),
        [],
        {"owner": "workload llm, namespace ml, pod llm-0"},
    ),
    Said("no job", "GpuAllocatedIdle", ("gpu:idle:holds", GPU), [], {"owner": "no workload known"}),
    Said(
        "two ports that are down, and one that is not",
        "GpuNicDown",
        ("gpu:nic_up:bool", GPU),
        [
            *(faulty_port(device, "down") for device in ("mlx5_0", "mlx5_1")),
            faulty_port("mlx5_2", "slow"),
            ("gpu_nic_info", {**GPU, "device": "mlx5_3", "port": "1"}),
        ],
        {"summary": "A network port of GPU 3 on node n1 is down: mlx5_0 port 1, mlx5_1 port 1"},
        lasting=50,
    ),
    Said(
        "the nearest port",
        "GpuNicFlapping",
        ("gpu:nic_link_downed:total", GPU),
        [("gpu_nic_info", {**GPU, "device": "mlx5_3", "port": "1"})],
        {"summary": "A network link of GPU 3 on node n1 keeps going down and coming back: mlx5_3 port 1"},
        lasting=50,
    ),
    Said(
        "an NVLink",
        "GpuNvlinkDown",
        ("gpu:nvlink_links_up:links", GPU),
        [
            ("gpu_nvlink_link_up", {"gpu_uuid": "GPU-3", "nvlink": "6"}),
            ("gpu_nvlink_links", GPU),
            ("gpu_nvlink_links_expected", GPU),
            ("gpu_nvlink_link_up", {"gpu_uuid": "GPU-3", "nvlink": "7"}, 0),
        ],
        {"summary": "Number of NVLinks down on GPU 3 on node n1: 1: NVLink 7"},
        lasting=50,
    ),
    Said(
        "without the metrics of links",
        "GpuNvlinkErrors",
        ("gpu:nvlink_replays:total", GPU),
        [],
        {"summary": "NVLink errors on GPU 3 on node n1"},
    ),
    required(1, "Cordon the node, wait until the jobs on this GPU have ended, then reset the GPU"),
    required(5, "Drain the node, then restart the IMEX service (nvidia-imex) on the nodes of its domain"),
    required(7, "Drain the node, then power-cycle or reboot it"),
    required(9, "Drain the node, and look the number up in the documentation of the driver"),
)


@pytest.mark.parametrize("said", SAID, ids=lambda said: said.name)
def test_what_an_alert_says(tmp_path: Path, said: Said) -> None:
    """Prometheus and vmalert fill in the same."""
    path = tmp_path / "rules.yaml"
    path.write_text(as_text([said.group()]))
    check(tmp_path, [said], rules=[path])
    content = dict(said.rendered())
    content["metricsql_expr_test"] = content.pop("promql_expr_test")
    content["alert_rule_test"] = [{**each, "groupname": "alert"} for each in content["alert_rule_test"]]
    done = vmalert_tool(tmp_path, path, content)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]


def test_who_is_notified_learns_whose_job_it_is() -> None:
    """Each alert on a GPU or a job that notifies has an owner; those of the hardware name it."""
    for mode in MODES:
        found = rules.alert(mode, {})["annotations"]
        notifies = mode.severity is not Severity.INFO
        of_gpu = mode.scope is not Scope.FLEET and "{gpu}" in mode.summary
        assert ("hardware" in found) is (notifies and of_gpu and mode.domain in (Domain.HEALTH, Domain.NETWORK)), (
            mode.name
        )
        assert "owner" in found or not (notifies and of_gpu), mode.name
