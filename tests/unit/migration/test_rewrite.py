"""Queries for other exporters, before and after."""

from __future__ import annotations

import json
from collections import Counter

import promql_parser
import pytest
import yaml

from gpu_exporter.catalogue.peer_series import load
from gpu_exporter.migration.promql import parse, render
from gpu_exporter.migration.rewrite import Rewritten, rewrite, rewrite_selector
from tests import ROOT

SERIES = load()
_FILE = ROOT / "tests" / "data" / "peer_queries.jsonl"
PUBLIC = [(row["source"], row["query"]) for row in map(json.loads, _FILE.read_text().splitlines())]
SELECTED = 'UUID="$gpu", instance="$node"'


@pytest.mark.parametrize(
    ("before", "after"),
    [
        # A selector alone.
        ("nvidia_smi_pstate", "DCGM_FI_DEV_PSTATE"),
        ("nvidia_smi_utilization_gpu_ratio{}", "DCGM_FI_DEV_GPU_UTIL / 100"),
        ("gpu_memory_used_MiB", "DCGM_FI_DEV_FB_USED"),
        ("nvidia_smi_memory_used_bytes offset 5m", "DCGM_FI_DEV_FB_USED offset 5m * 1048576"),
        ("nvidia_smi_pstate @ end()", "DCGM_FI_DEV_PSTATE @ end()"),
        # Labels: in matchers, lists and functions of labels.
        (
            'nvidia_smi_temperature_gpu{uuid="$gpu",instance="$node"}',
            f"DCGM_FI_DEV_GPU_TEMP{{{SELECTED}}}",
        ),
        ('nvidia_smi_pstate{uuid="1-2"}', 'DCGM_FI_DEV_PSTATE{UUID="GPU-1-2"}'),
        ('nvidia_smi_pstate{uuid=~"1|2"}', 'DCGM_FI_DEV_PSTATE{UUID=~"GPU-(?:1|2)"}'),
        ('nvidia_smi_pstate{uuid!=""}', 'DCGM_FI_DEV_PSTATE{UUID!=""}'),
        ('gpu_utilization_Percentage{uuid="GPU-1"}', 'DCGM_FI_DEV_GPU_UTIL{UUID="GPU-1"}'),
        ("avg by(hostname,devicename) (gpu_power_usage_W)", "avg by (Hostname, modelName) (DCGM_FI_DEV_POWER_USAGE)"),
        # `without` keeps the labels that the other exporter did not have, too: one sum for each GPU.
        (
            "sum(nvidia_smi_pstate) without(uuid)",
            "sum(max by (UUID, instance, job) (DCGM_FI_DEV_PSTATE)) without (UUID)",
        ),
        (
            "sum without(uuid) (nvidia_smi_utilization_gpu_ratio)",
            "sum without (UUID) ((max by (UUID, instance, job) (DCGM_FI_DEV_GPU_UTIL) / 100))",
        ),
        (
            "avg without(uuid) (avg_over_time(nvidia_smi_pstate[5m]))",
            "avg without (UUID) (max by (UUID, instance, job) (avg_over_time(DCGM_FI_DEV_PSTATE[5m])))",
        ),
        (
            'label_replace(nvidia_smi_gpu_info, "short", "$1", "uuid", "(.{8}).*")',
            'label_replace(gpu_info, "short", "$1", "UUID", "(.{8}).*")',
        ),
        (
            "nvidia_smi_clocks_event_reasons_sw_power_cap{uuid='1'} == 1",
            "gpu_clock_event_active{UUID='GPU-1', reason=\"sw_power_cap\"} == 1",
        ),
        # Units: inside aggregations, around functions of time.
        ("max(nvidia_smi_fan_speed_ratio) > 0.9", "max(DCGM_FI_DEV_FAN_SPEED / 100) > 0.9"),
        ("avg_over_time(nvidia_smi_fan_speed_ratio[1h])", "avg_over_time(DCGM_FI_DEV_FAN_SPEED[1h]) / 100"),
        ("changes(nvidia_smi_fan_speed_ratio[1h])", "changes(DCGM_FI_DEV_FAN_SPEED[1h])"),
        ("rate(nvidia_smi_energy_joules_total[$__rate_interval])", "rate(gpu_energy_joules_total[$__rate_interval])"),
        (
            "max_over_time(nvidia_smi_fan_speed_ratio[1h:1m]) > 1",
            "max_over_time((DCGM_FI_DEV_FAN_SPEED / 100)[1h:1m]) > 1",
        ),
        ("nvidia_smi_fan_speed_ratio[1h:1m]", "(DCGM_FI_DEV_FAN_SPEED / 100)[1h:1m]"),
        ("absent(nvidia_smi_fan_speed_ratio)", "absent(DCGM_FI_DEV_FAN_SPEED)"),
        # Several selectors: each has only the labels that it had.
        (
            "nvidia_smi_power_draw_watts / nvidia_smi_power_limit_watts",
            "max by (UUID, instance, job) (DCGM_FI_DEV_POWER_USAGE)"
            " / max by (UUID, instance, job) (DCGM_FI_DEV_POWER_MGMT_LIMIT)",
        ),
        (
            "nvidia_smi_pstate{cluster='a'} * on(uuid) group_left(name) nvidia_smi_gpu_info",
            "max by (UUID, instance, job, cluster) (DCGM_FI_DEV_PSTATE{cluster='a'})"
            " * on (UUID) group_left (model) max by (UUID, model, instance, job, cluster) (gpu_info)",
        ),
        (
            "gpu_power_usage_W > gpu_power_limit_W * 0.9 and on(uuid) up == 1",
            "max by (Hostname, gpu, modelName, UUID, instance, job) (DCGM_FI_DEV_POWER_USAGE)"
            " > max by (Hostname, gpu, modelName, UUID, instance, job) (DCGM_FI_DEV_POWER_MGMT_LIMIT) * 0.9"
            " and on (UUID) up == 1",
        ),
        (
            "nvidia_smi_mig_sm_activity_ratio * on(uuid, gpu_instance_id) group_left(profile) nvidia_smi_mig_info",
            'max by (UUID, GPU_I_ID, instance, job) (DCGM_FI_PROF_SM_ACTIVE{GPU_I_ID!=""})'
            " * on (UUID, GPU_I_ID) group_left (GPU_I_PROFILE)"
            " max by (UUID, GPU_I_ID, compute_instance_id, GPU_I_PROFILE, mig_uuid, instance, job)"
            ' (gpu_mig_device_info{GPU_I_ID!=""})',
        ),
        # The names of older drivers have the same counterpart.
        (
            "nvidia_smi_clocks_event_reasons_gpu_idle or nvidia_smi_clocks_throttle_reasons_gpu_idle",
            'gpu_clock_event_active{reason="gpu_idle"}',
        ),
        # Comments stay, and nothing in strings is touched.
        ("nvidia_smi_pstate # of nvidia_smi_fan_speed_ratio", "DCGM_FI_DEV_PSTATE # of nvidia_smi_fan_speed_ratio"),
    ],
)
def test_a_query_is_rewritten(before: str, after: str) -> None:
    """Nothing is left out."""
    found = rewrite(before, SERIES)

    assert found is not None
    assert (found.text, found.problems) == (after, ())
    promql_parser.parse(after.replace("$__rate_interval", "5m"))


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("nvidia_smi_compute_mode == 2", "nvidia_smi_compute_mode has no counterpart"),
        (
            "host_load_average_1m_Percentage",
            "host_load_average_1m_Percentage has no counterpart: node_exporter: node_load1",
        ),
        ("nvidia_smi_memory_used_mb > 9e3", "nvidia_smi_memory_used_mb is not a known series of nvidia_gpu_exporter"),
        ('{__name__=~"nvidia_smi_ecc_.+"}', "selects series by a regular expression of their names"),
        (
            "stdvar_over_time(nvidia_smi_fan_speed_ratio[1h])",
            "stdvar_over_time of nvidia_smi_fan_speed_ratio, whose unit differs",
        ),
        ("process_gpu_memory_MiB{username='me'}", "gpu_process_memory_used_bytes has no label for username"),
        ("sum by (hostname) (process_gpu_memory_MiB)", "gpu_process_memory_used_bytes has no label for hostname"),
        ("nvidia_smi_pstate == gpu_power_usage_W", "reads series of two exporters"),
        ("sum(nvidia_smi_pstate", "not PromQL: it ends too early: close its parentheses and braces"),
        ("nvidia_smi_pstate +", "not PromQL: an operand is missing after +"),
        ("sum(nvidia_smi_pstate and) > 1", "not PromQL: an operand is missing after and"),
        ("nvidia_smi_pstate / on(uuid)", "not PromQL: an operand is missing after on (uuid)"),
        ("nvidia_smi_pstate > bool", "not PromQL: an operand is missing after bool"),
        ("nvidia_smi_pstate * / 2", "not PromQL: an operand is missing before /"),
        ("nvidia_smi_pstate on(uuid) up", "not PromQL: an operator is missing before on (uuid)"),
        ("nvidia_smi_pstate by (uuid)", "not PromQL: by (uuid) does not follow an aggregation"),
        ("nvidia_smi_pstate 5", "not PromQL: an operator is missing before 5"),
        ("nvidia_smi_pstate = 5", "not PromQL: = is not an operator"),
        ("nvidia_smi_pstate > ()", "not PromQL: parentheses contain one expression"),
        ("max(nvidia_smi_pstate,)", "not PromQL: an argument of max is missing"),
        ("smooth(nvidia_smi_pstate)", "not PromQL: smooth is not a function of PromQL"),
        ("nvidia_smi_pstate and {}", "not PromQL: {} selects every series: name one"),
        ("rate(nvidia_smi_energy_joules_total[5x])", "not PromQL: [5x] is not a duration, such as [5m]"),
        ("nvidia_smi_pstate offset 5x", "not PromQL: 5x is not a duration, such as 5m"),
        ("sum(nvidia_smi_pstate)[5m:1x]", "not PromQL: [5m:1x] is not a duration, such as [5m]"),
        ("nvidia_smi_pstate @ soon", "not PromQL: soon is not a time"),
        ("nvidia_smi_pstate{$gpus}", 'not PromQL: $gpus in braces needs a label and an operator, as in uuid="$gpus"'),
        ("(" * 60 + "nvidia_smi_pstate" + ")" * 60, "not PromQL: nested too deeply"),
        ('nvidia_smi_pstate{uuid="}', 'not PromQL: uuid = " in braces'),
        ('nvidia_smi_pstate + "', 'not PromQL: a " without its end or beginning'),
        ("nvidia_smi_pstate)", "not PromQL: a ) without its beginning"),
    ],
)
def test_a_query_without_a_counterpart_stays_with_a_comment(query: str, reason: str) -> None:
    """It says why."""
    found = rewrite(query, SERIES)

    assert found is not None
    assert (found.text, found.done, found.problems) == (f"# not rewritten: {reason}\n{query}", False, (reason,))


@pytest.mark.parametrize(
    "query",
    [
        'nvidia_smi_pstate{uuid="[[gpu]]"} > [[limit]]',
        'nvidia_smi_pstate{uuid=~"${gpu:regex}"} $operator 5',
        "rate(nvidia_smi_pstate[$__rate_interval])",
        "rate(nvidia_smi_pstate[[[interval]]] offset $time)",
        "rate(nvidia_smi_pstate [${interval}:] @ $time)",
        "$aggregation by ($label) (nvidia_smi_pstate)",
        "${function:raw}_over_time(nvidia_smi_pstate[5m])",
        "topk([[n]], nvidia_smi_pstate) $more",
        "max_over_time(sum(nvidia_smi_pstate)[1h:1m] @ end() offset -5m) ^ 2",
        "-nvidia_smi_pstate > bool -1.5e+3 and time() > +Inf",
        "sum(nvidia_smi_pstate) by (uuid) == ignoring(uuid) group_left () nvidia_smi_pstate offset 1h30m",
    ],
)
def test_variables_and_all_of_promql_are_accepted(query: str) -> None:
    """A variable may be any part of a query."""
    found = rewrite(query, SERIES)

    assert found is not None
    assert found.problems == ()


def test_the_queries_of_the_rules_are_promql() -> None:
    """They use most of the language."""
    for file in sorted((ROOT / "alerts").glob("*.yaml")):
        for group in yaml.safe_load(file.read_text()).get("groups", ()):
            for rule in group["rules"]:
                assert render(parse(rule["expr"]))


def test_a_variable_is_not_given_the_prefix_of_a_value() -> None:
    """It has the prefix already, in either way to write it."""
    assert rewrite("rate(nvidia_smi_fan_speed_ratio{uuid='[[gpu]]'}[[[time]]])", SERIES) == Rewritten(
        "rate(DCGM_FI_DEV_FAN_SPEED{UUID='[[gpu]]'}[[[time]]]) / 100", True
    )


@pytest.mark.parametrize(
    ("query", "after"),
    [
        ("nvidia_smi_pstate or nvidia_smi_compute_mode", "DCGM_FI_DEV_PSTATE"),
        ("sum(nvidia_smi_compute_mode or on(uuid) nvidia_smi_pstate) > 1", "sum(DCGM_FI_DEV_PSTATE) > 1"),
    ],
)
def test_an_alternative_without_a_counterpart_is_left_out(query: str, after: str) -> None:
    """With a comment, too."""
    found = rewrite(query, SERIES)

    assert found is not None
    assert found.done
    assert found.text.splitlines() == ["# left out: nvidia_smi_compute_mode has no counterpart", after]


@pytest.mark.parametrize(
    "query",
    ["up", "node_load1 / 2", "nvidia_smi_pstate:max5m", 'DCGM_FI_DEV_GPU_UTIL{gpu="0"}', "not ( promql", "", '"'],
)
def test_other_queries_stay(query: str) -> None:
    """Also those that are not PromQL."""
    assert rewrite(query, SERIES) is None


@pytest.mark.parametrize(
    ("selector", "after"),
    [
        ('nvidia_smi_index{job="$job"}', 'gpu_info{job="$job"}'),
        ("nvidia_smi_fan_speed_ratio", "DCGM_FI_DEV_FAN_SPEED"),
        ("nvidia_smi_command_exit_code", None),
        ("up", None),
        ("nvidia_smi_index or up", None),
    ],
)
def test_a_selector_for_the_values_of_a_label(selector: str, after: str | None) -> None:
    """Any series of the GPU will do, without a unit."""
    assert rewrite_selector(selector, SERIES) == after


def test_public_queries_stay_promql() -> None:
    """Rewritten or with a comment."""
    for _, query in PUBLIC:
        found = rewrite(query, SERIES)
        assert found is not None
        promql_parser.parse(found.text.replace("$__rate_interval", "5m"))


@pytest.mark.drift
def test_the_documentation_counts_the_public_queries() -> None:
    """All, and those that are rewritten, of each source in the order of the file."""
    total = Counter(source for source, _ in PUBLIC)
    done = Counter(source for source, query in PUBLIC if (new := rewrite(query, SERIES)) and new.done)
    detail, overview, nvitop, alerts = total
    text = (ROOT / "docs" / "migration.md").read_text().partition("| dashboards and rules | queries |")[2]
    rows = [[int(cell) for cell in row.split(" | ")[1:3]] for row in text.splitlines()[2:6]]

    assert rows == [[total[source], done[source]] for source in (detail, overview, alerts, nvitop)], (
        "fix: correct the table in docs/migration.md"
    )
