"""The user's changes of XIDs as YAML: `63: {action: gpu_reset, drain: true}`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import yaml

from gpu_exporter.io.yaml_decoding import yaml_root
from gpu_exporter.model.errors import GpuExporterError


def cells(path: Path, content: str) -> Iterator[tuple[str, str, str, str]]:
    """Yield file and line, code, column and value for every value. Raises GpuExporterError."""
    try:
        root = yaml_root(content)
    except ValueError as error:
        raise GpuExporterError(f"{path}: {error}") from error
    if root is None:
        return
    for code, changes in _pairs(path, root, "codes to their changes, such as 63: {action: gpu_reset}"):
        for column, value in _pairs(path, changes, f"columns to values, for code {code.value}"):
            where = f"{path}:{column.start_mark.line + 1}"
            if not isinstance(value, yaml.ScalarNode):
                raise GpuExporterError(f"{where}: {column.value} of {code.value} needs one value")
            yield where, code.value, column.value, value.value


def _pairs(path: Path, node: yaml.Node, what: str) -> Iterator[tuple[yaml.ScalarNode, yaml.Node]]:
    where = f"{path}:{node.start_mark.line + 1}"
    if not isinstance(node, yaml.MappingNode):
        raise GpuExporterError(f"{where}: must be a mapping of {what}")
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise GpuExporterError(f"{where}: must be a mapping of {what}")
        yield key, value
