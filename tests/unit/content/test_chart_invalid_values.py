"""The chart rejects invalid values with an error that names the value, and accepts valid edge cases."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby

import pytest
from helm_python import Chart, HelmError

from content.chart.exporter_schemas import WEB_CONFIG
from content.chart.values import BY_HAND
from content.chart.values import values as rows
from gpu_exporter.http import web_config
from tests.support.chart import CHART, HASH, NAMESPACE, RELEASE, SETS, Values, objects, of_readme, only, texts
from tests.support.chart_effects import nested
from tests.support.chart_valid_values import VALID
from tests.support.chart_values import INVALID
from tests.support.tools import is_long

pytestmark = pytest.mark.slow


Invalid = tuple[Values, str]
# An error of the schema names all invalid values, one of a template only the first.
OF_SCHEMA = "at '"


def rendered_together(invalid: Sequence[Invalid]) -> Sequence[Sequence[Invalid]]:
    """Return invalid values in groups: those that the schema rejects and that share no section are together."""
    groups: list[list[Invalid]] = []
    for values, expected in invalid:
        alone = is_long() or OF_SCHEMA not in expected or f"{OF_SCHEMA}'" in expected
        fits = (group for group in groups if OF_SCHEMA in group[0][1] and not {*values} & {*merged(group)})
        group = None if alone else next(fits, None)
        if group is None:
            groups.append([(values, expected)])
        else:
            group.append((values, expected))
    return groups


def merged(group: Sequence[Invalid]) -> Values:
    """Return the values of a group as one."""
    return {key: value for values, _ in group for key, value in values.items()}


@pytest.mark.parametrize("group", rendered_together(INVALID), ids=lambda group: str(group[0][0])[:60])
def test_an_invalid_value_is_named(group: Sequence[Invalid]) -> None:
    """The error has the value's path, and what is allowed or what to do. With `--long`, each value alone."""
    with pytest.raises(HelmError) as caught:
        texts(merged(group))
    message = str(caught.value)
    assert [expected for _, expected in group if expected not in message] == [], message
    if OF_SCHEMA not in group[0][1]:
        assert len(message.strip().splitlines()) == 1


def test_the_image_is_required() -> None:
    """The defaults alone would run somebody's image, on some registry, as root on every GPU node."""
    with Chart.load(CHART) as loaded, pytest.raises(HelmError) as caught:
        loaded.render({}, name=RELEASE, namespace=NAMESPACE)
    (line,) = str(caught.value).strip().splitlines()
    assert line.endswith("push it, and set image.repository=registry.example/gpu-exporter")


@pytest.mark.parametrize("name", VALID)
def test_a_valid_edge_case_is_accepted(name: str) -> None:
    assert "daemonset.yaml" in texts(VALID[name])


SECTIONS = sorted({row.path.partition(".")[0] for row in rows() if "." in row.path} - {"image"})


# With `--long`, each alone.
@pytest.mark.parametrize("paths", [[path] for path in SECTIONS] if is_long() else [SECTIONS])
def test_empty_sections_have_their_defaults(paths: Sequence[str]) -> None:
    """Not a trace of Helm's, nor all features off."""
    assert texts(dict.fromkeys(paths)) == texts({})


def section(path: str) -> str:
    """Return the path of the section of a key; empty at the top."""
    return path.rpartition(".")[0]


KEYS = sorted(
    (row.path for row in BY_HAND if isinstance(row.default, dict | list) or row.path in ("nodes", "interval")),
    key=section,
)


@pytest.mark.parametrize(
    "paths", [[path] for path in KEYS] if is_long() else [[*keys] for _, keys in groupby(KEYS, section)]
)
def test_empty_keys_are_accepted(paths: Sequence[str]) -> None:
    """Those of a section at once; with `--long`, each alone."""
    enabled = section(paths[0]) in ("networkPolicy", "prometheusRule")
    values: Values = {section(paths[0]): {"enabled": True}} if enabled else {}
    for path in paths:
        values = nested(path, None, values)
    assert "daemonset.yaml" in texts(values)


@pytest.mark.parametrize("begin", ["dashboards", "web", "podLabels", "dcgm", "prometheusRule", "extraManifests"])
def test_examples_of_the_readme_are_accepted(begin: str) -> None:
    values = json.loads(json.dumps(of_readme(begin)).replace("$2y$10$\\u2026", HASH))
    assert "daemonset.yaml" in texts(values)


def test_opencost_and_kubecost_find_the_pods() -> None:
    """By one of these labels; GPU operator's Service must not."""
    labels = only(objects(of_readme("podLabels")), "DaemonSet")["spec"]["template"]["metadata"]["labels"]
    names = [labels.get(key, "") for key in ("app", "app.kubernetes.io/name", "app.kubernetes.io/component")]
    assert any("dcgm-exporter" in name for name in names)
    assert labels["app"] != "nvidia-dcgm-exporter"


def test_enough_invalid_values() -> None:
    """Each kind of value has some."""
    assert len(INVALID) >= 70
    assert len(VALID) >= 40


def test_the_keys_of_the_web_configuration_are_those_of_the_exporter() -> None:
    """The chart would otherwise refuse, or pass on, a key that the exporter treats differently."""
    sections = WEB_CONFIG["properties"]
    assert sections.keys() == web_config.SECTIONS.keys()
    assert sections["tls_server_config"]["properties"].keys() == web_config.TLS_KEYS.keys()
    assert sections["http_server_config"]["properties"].keys() == web_config.HTTP_KEYS.keys()
    assert sections["rate_limit"]["properties"].keys() == web_config.RATE_KEYS.keys()


def test_other_tools_can_read_the_schema() -> None:
    """Editors check values with it, too."""
    import jsonschema  # takes a second, which each run of fast tests would pay

    schema = json.loads((CHART / "values.schema.json").read_text())
    jsonschema.Draft7Validator.check_schema(schema)
    validator = jsonschema.Draft7Validator(schema)
    for values in (*SETS.values(), *VALID.values()):
        validator.validate({key: value for key, value in values.items() if value is not None})
