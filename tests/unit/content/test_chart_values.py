"""Templates read every value of the table, and no others."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Set

import pytest

from content.chart.files import GLOBAL
from content.chart.schemas import Schema
from content.chart.values import Value, values
from tests.support.chart import CHART

ROWS = {row.path: row for row in values()}
TEMPLATES = sorted(path for path in (CHART / "templates").rglob("*") if path.is_file())
# Templates iterate over everything below these.
ITERATED = ("dashboards.boards", "prometheusRule.limits", "prometheusRule.modes")
PATH = r"((?:\.[A-Za-z]\w*)+)"


def references(text: str) -> Iterator[str]:
    """Return the paths of the values in a template, also through a variable that holds one of their objects."""
    text = re.sub(r"\((\$?\.Values\.\w+)\)", r"\1", text)  # the values of an older release may lack the object
    aliases = re.findall(rf"\$(\w+) :?=\s+(?:\$\w*)?\.Values{PATH} }}}}", text)
    yield from (path.removeprefix(".") for path in re.findall(rf"\.Values{PATH}", text))
    for name, path in aliases:
        yield from ((path + rest).removeprefix(".") for rest in re.findall(rf"\${name}{PATH}", text))


def reads(text: str, path: str) -> bool:
    """Return whether a template reads a value: by its path, or as a field of its object."""
    named = set(references(text))
    parent, _, leaf = path.rpartition(".")
    field = re.search(rf'"{leaf}"|(?<![\w)])\.{leaf}\b', text)
    return any(f"{other}.".startswith(f"{path}.") for other in named) or (parent in named and field is not None)


def unread(rows: Set[str], templates: Mapping[str, str]) -> list[str]:
    """Return the values that no template reads."""
    return [
        path
        for path in sorted(rows)
        if not path.startswith(tuple(f"{parent}." for parent in ITERATED))
        and not any(reads(text, path) for text in templates.values())
    ]


def undefined(rows: Mapping[str, Value], templates: Mapping[str, str]) -> list[str]:
    """Return the values in templates that have no row, nor belong to one."""
    return [
        f"{name}: .Values.{path}"
        for name, text in templates.items()
        for path in sorted(set(references(text)))
        if not defined(rows, path)
    ]


def defined(rows: Mapping[str, Value], path: str) -> bool:
    """Return whether a path is a row, an object of rows, or within a row that is an object itself."""
    if any(f"{row}.".startswith(f"{path}.") for row in rows) or path == "global":
        return True
    schemas = {"global": GLOBAL, **{row.path: row.schema for row in rows.values()}}
    return any(path.startswith(f"{row}.") and may_have(schema, path[len(row) + 1 :]) for row, schema in schemas.items())


def may_have(schema: Schema, path: str) -> bool:
    """Return whether an object may have a key."""
    key = path.partition(".")[0]
    return schema["type"] == "object" and (
        schema.get("additionalProperties") is not False or key in schema.get("properties", {})
    )


TEXTS = {str(path.relative_to(CHART)): path.read_text() for path in TEMPLATES}


def test_every_value_is_read() -> None:
    """A value that no template reads would have no effect."""
    paths = unread(ROWS.keys(), TEXTS)

    assert paths == [], (
        f"no template reads {paths}; fix: read them as .Values.PATH in helm/gpu-exporter/templates/*,"
        " or remove the rows from content/chart/values.py"
    )


def test_every_value_that_is_read_is_a_row() -> None:
    """Helm renders a value that does not exist as nothing."""
    paths = undefined(ROWS, TEXTS)

    assert paths == [], f"no row has {paths}; fix: add rows to content/chart/values.py, or correct the templates"


@pytest.mark.parametrize(
    ("template", "path", "expected"),
    [
        ("{{ .Values.port }}", "port", True),
        ("{{ .Values.ports }}", "port", False),
        ("{{ $.Values.web.config.users }}", "web.config", True),
        ("{{ .Values.web.configs }}", "web.config", False),
        ("{{- $monitor := .Values.monitor }}\n{{ $monitor.job }}", "monitor.job", True),
        ("{{- $monitor := .Values.monitor }}\n{{ .Values.other.job }}", "monitor.job", False),
        (
            "{{- $a := $root.Values.one }}{{ if true }}{{ $a = $root.Values.other }}{{ end }}{{ $a.job }}",
            "other.job",
            True,
        ),
        ("{{ (.Values.monitor).job }}", "monitor.job", True),
        ("{{- with .Values.access }}{{ .device }}{{ end }}", "access.device", True),
        ('{{- range list "pods" }}{{ get $.Values.attribution . }}{{ end }}', "attribution.pods", True),
        ("{{ .Values.attribution.dra }}", "attribution.pods", False),
    ],
)
def test_which_values_a_template_reads(template: str, path: str, *, expected: bool) -> None:
    assert unread({path}, {"a.yaml": template}) == ([] if expected else [path])


@pytest.mark.parametrize("path", ["prot", "image.digests", "config.sourze", "prometheusRule.nope", "global.other"])
def test_unknown_values_are_named(path: str) -> None:
    """Also within an object with a fixed set of keys."""
    template = f"{{{{ .Values.{path} }}}}"
    expected = [] if path == "global.other" else [f"a.yaml: .Values.{path}"]

    assert undefined(ROWS, {"a.yaml": template}) == expected
