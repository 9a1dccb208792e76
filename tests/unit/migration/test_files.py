"""Dashboards and files of rules for other exporters."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from gpu_exporter.migration.files import Migration

RULES = """\
# Mine.
groups:
  - name: gpus   # as ever
    rules:
      - alert: Hot
        expr: >-
          nvidia_smi_temperature_gpu
          > 85
        for: 10m
        annotations:
          summary: 'GPU {{ $labels.uuid }} of {{$labels.instance}}'
      - {record: util, expr: avg(nvidia_smi_utilization_gpu_ratio), labels: {of: gpus}}
      - alert: Exclusive
        expr: nvidia_smi_compute_mode == 2
        annotations: {nested: [no text], summary: "{{ $labels.uuid }}"}
      - alert: Replaced
        expr: nvidia_smi_gpu_recovery_action{instance="it's"} > 0
        annotations: {nested: [no text]}
      - alert: Down
        expr: up == 0
      - alert: Gone
        expr: count({__name__=~"nvidia_smi_.*"}) == 0
        annotations: {summary: "{{ $labels.uuid }}"}
"""
MIGRATED = """\
# Mine.
groups:
  - name: gpus   # as ever
    rules:
      - alert: Hot
        expr: "DCGM_FI_DEV_GPU_TEMP > 85"
        for: 10m
        annotations:
          summary: "GPU {{ $labels.UUID }} of {{$labels.instance}}"
      - {record: util, expr: "avg(DCGM_FI_DEV_GPU_UTIL / 100)", labels: {of: gpus}}
      - alert: Exclusive
        expr: |-
          # not rewritten: nvidia_smi_compute_mode has no counterpart
          nvidia_smi_compute_mode == 2
        annotations: {nested: [no text], summary: "{{ $labels.uuid }}"}
      - alert: Replaced
        expr: 'DCGM_FI_DEV_GET_GPU_RECOVERY_ACTION{instance="it''s"} > 0'
        annotations: {nested: [no text]}
      - alert: Down
        expr: up == 0
      - alert: Gone
        expr: |-
          # not rewritten: selects series by a regular expression of their names
          count({__name__=~"nvidia_smi_.*"}) == 0
        annotations: {summary: "{{ $labels.uuid }}"}
"""


def test_rules_are_rewritten_in_place() -> None:
    """Comments and forms stay; what the rules are is the same for a parser."""
    migration = Migration()

    assert migration.migrate(RULES) == MIGRATED
    assert (migration.rewritten, migration.refused) == (3, 2)
    assert migration.problems == [
        ("nvidia_smi_compute_mode == 2", ("nvidia_smi_compute_mode has no counterpart",)),
        (
            'count({__name__=~"nvidia_smi_.*"}) == 0',
            ("selects series by a regular expression of their names",),
        ),
    ]
    assert yaml.safe_load(MIGRATED)["groups"][0]["rules"][1]["record"] == "util"


def test_what_reads_a_recorded_series_uses_the_new_names_of_its_labels() -> None:
    """Also by way of another rule, and before it is recorded. A recorded series keeps the labels that it had."""
    content = """\
groups:
  - name: gpus
    rules:
      - alert: Idle
        expr: util:1h{uuid!="1-2"} < 0.1
        annotations: {summary: "{{ $labels.uuid }}"}
      - record: util:1h
        expr: avg_over_time(util[1h])
      - record: util
        expr: nvidia_smi_utilization_gpu_ratio
      - record: info
        expr: nvidia_smi_gpu_info
      - record: mode
        expr: nvidia_smi_compute_mode
      - alert: Mode
        expr: mode{uuid="1"} == 2
"""
    rules = yaml.safe_load(Migration().migrate(content))["groups"][0]["rules"]
    assert rules[0]["expr"] == 'util:1h{UUID!="GPU-1-2"} < 0.1'
    assert rules[0]["annotations"] == {"summary": "{{ $labels.UUID }}"}
    assert [rule["expr"] for rule in rules[1:3]] == [
        "avg_over_time(util[1h])",
        "max by (UUID, instance, job) (DCGM_FI_DEV_GPU_UTIL) / 100",
    ]
    assert rules[3]["expr"].startswith("max by (UUID, model, ")
    assert rules[5]["expr"] == 'mode{uuid="1"} == 2'


def variable(query: str, regex: str = "") -> Mapping[str, Any]:
    """Return a variable of a dashboard."""
    return {"name": "v", "type": "query", "query": {"query": query, "refId": "A"}, "definition": query, "regex": regex}


PANEL = {
    "targets": [
        {"expr": "nvidia_smi_gpu_info * on(uuid) nvidia_smi_pstate", "legendFormat": "{{index}} {{name}} {{job}}"}
    ],
    "title": "name of uuid",
    "links": [{"url": "/d/x?var-gpu=${__data.fields.uuid}&name=1"}],
    "fieldConfig": {"overrides": [{"matcher": {"id": "byName", "options": "uuid"}, "properties": [{"id": "unit"}]}]},
    "transformations": [
        {"id": "joinByField", "options": {"byField": "uuid"}},
        {"id": "filterFieldsByName", "options": {"include": {"pattern": "^(uuid|index|uuids)$"}}},
        {"id": "organize", "options": {"indexByName": {"name": 0, "uuid": 1}, "renameByName": {"index": "#"}}},
    ],
}


def test_a_dashboard_uses_the_new_names_of_labels_everywhere() -> None:
    """In legends, links, overrides and transformations; names of other things stay."""
    (panel,) = json.loads(Migration().migrate(json.dumps({"name": "uuid", "panels": [PANEL]})))["panels"]

    assert panel["targets"][0]["expr"].startswith("max by (UUID, instance, job) (gpu_info) * on (UUID)")
    assert panel["targets"][0]["legendFormat"] == "{{gpu}} {{model}} {{job}}"
    assert panel["title"] == "name of uuid"
    assert panel["links"] == [{"url": "/d/x?var-gpu=${__data.fields.UUID}&name=1"}]
    assert panel["fieldConfig"]["overrides"][0]["matcher"]["options"] == "UUID"
    assert [each["options"] for each in panel["transformations"]] == [
        {"byField": "UUID"},
        {"include": {"pattern": "^(UUID|gpu|uuids)$"}},
        {"indexByName": {"model": 0, "UUID": 1}, "renameByName": {"gpu": "#"}},
    ]


def test_a_query_that_stays_keeps_its_legend() -> None:
    """It returns the labels of the other exporter, as long as that runs."""
    target = {"expr": "nvidia_smi_compute_mode", "legendFormat": "{{uuid}}", "refId": "B"}
    (panel,) = json.loads(Migration().migrate(json.dumps({"panels": [{**PANEL, "targets": [target]}]})))["panels"]

    comment = "# not rewritten: nvidia_smi_compute_mode has no counterpart\n"
    assert panel["targets"] == [{**target, "expr": comment + target["expr"]}]


def test_a_dashboard_of_two_exporters_has_one_comment_on_each_query() -> None:
    """And the new names of the labels of both."""
    targets = [
        {"expr": "nvidia_smi_compute_mode", "legendFormat": "{{uuid}}"},
        {"expr": "gpu_power_usage_W", "legendFormat": "{{devicename}}"},
        {"expr": "nvidia_smi_pstate", "legendFormat": "{{uuid}}"},
    ]
    migration = Migration()
    document = json.loads(migration.migrate(json.dumps({"panels": [{"targets": targets}]})))

    assert [tuple(each.values()) for each in document["panels"][0]["targets"]] == [
        ("# not rewritten: nvidia_smi_compute_mode has no counterpart\nnvidia_smi_compute_mode", "{{uuid}}"),
        ("DCGM_FI_DEV_POWER_USAGE", "{{modelName}}"),
        ("DCGM_FI_DEV_PSTATE", "{{UUID}}"),
    ]
    assert (migration.rewritten, migration.refused) == (2, 1)


@pytest.mark.parametrize(
    ("query", "after"),
    [
        ("label_values(nvidia_smi_index, job)", "label_values(gpu_info, job)"),
        ('label_values(nvidia_smi_pstate{job="$job"},uuid)', 'label_values(DCGM_FI_DEV_PSTATE{job="$job"}, UUID)'),
        ("label_values(uuid)", "label_values(UUID)"),
        ("query_result(nvidia_smi_fan_speed_ratio > 0)", "query_result((DCGM_FI_DEV_FAN_SPEED / 100) > 0)"),
        ("label_values(up, instance)", "label_values(up, instance)"),
        (
            "label_values(nvidia_smi_command_exit_code, instance)",
            "label_values(nvidia_smi_command_exit_code, instance)",
        ),
        ("label_values(cuda_version)", "label_values(cuda_version)"),
        ("metrics(node_.*)", "metrics(node_.*)"),
    ],
)
def test_variables(query: str, after: str) -> None:
    """Their queries, in both places; what reads labels from the result has the new names, too, if the query changed."""
    document = {"templating": {"list": [variable(query, '/uuid="(?<value>[^"]+)/')]}, "panels": [PANEL]}
    (found,) = json.loads(Migration().migrate(json.dumps(document)))["templating"]["list"]

    assert found["query"]["query"] == found["definition"] == after
    assert found["regex"] == ('/UUID="(?<value>[^"]+)/' if after != query else '/uuid="(?<value>[^"]+)/')


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("label_values(nvidia_smi_pstate{, uuid)", "not PromQL: it ends too early: close its parentheses and braces"),
        (
            "label_values(process_gpu_memory_MiB{username='me'}, uuid)",
            "gpu_process_memory_used_bytes has no label for username",
        ),
        ("label_values(up{, instance)", ""),
    ],
)
def test_a_variable_that_cannot_be_rewritten_stays(query: str, reason: str) -> None:
    """It is listed if it reads another exporter; the rest of the dashboard is rewritten."""
    document = {"templating": {"list": [variable(query, "")]}, "panels": [PANEL]}
    migration = Migration()
    (found,) = json.loads(migration.migrate(json.dumps(document)))["templating"]["list"]

    assert found["definition"] == query
    assert [reasons for text, reasons in migration.problems if text == query] == ([(reason,)] if reason else [])


@pytest.mark.parametrize(
    "text",
    [
        "groups:\n- rules:\n  - alert: Hot\n    expr: nvidia_smi_temperature_gpu > 85\n",
        "groups:\n- rules:\n  - expr: nvidia_smi_temperature_gpu > 85\n",
        json.dumps({"panels": [{"targets": [{"expr": "nvidia_smi_temperature_gpu"}]}]}, indent=2),
    ],
)
def test_files_in_a_config_map_are_not_rewritten(text: str) -> None:
    """They are listed; other texts are not."""
    content = yaml.safe_dump({"kind": "ConfigMap", "data": {"a.yaml": text, "b.md": "nvidia_smi_pstate, expr: none\n"}})
    migration = Migration()

    assert yaml.safe_load(migration.migrate(content)) == yaml.safe_load(content)
    assert migration.problems == [("a.yaml", ("a file inside of a file: save it as one of its own and rewrite that",))]


def test_a_dashboard_of_another_exporter_stays() -> None:
    """It is only formatted."""
    document = {"panels": [{**PANEL, "targets": [{"expr": "up", "legendFormat": "{{uuid}}"}]}]}

    assert json.loads(Migration().migrate(json.dumps(document))) == document


@pytest.mark.parametrize("content", ["{", "groups: [", "a: 1\na: 2", "text", ""])
def test_what_is_neither_is_an_error(content: str) -> None:
    """With one line."""
    with pytest.raises(ValueError, match=r"^[^\n]+$"):
        Migration().migrate(content)
