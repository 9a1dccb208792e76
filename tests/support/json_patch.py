"""JSON patch (RFC 6902) as the API server applies it: `add`, `remove` and `test` on objects."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any


class PatchFailed(Exception):
    """A `test` failed, or a path does not exist: the server answers 422."""


def patched(item: Mapping[str, Any], operations: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return an object with the operations applied, all or none. What they do not change is shared with the old one."""
    new: dict[str, Any] = dict(item)
    for operation in operations:
        *parents, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
        node: Any = new
        for part in parents:
            if not isinstance(node, dict) or part not in node:
                raise PatchFailed(f"{operation['path']} does not exist")
            node[part] = dict(node[part]) if isinstance(node[part], dict) else node[part]
            node = node[part]
        match operation["op"]:
            case "add":
                node[last] = copy.deepcopy(operation["value"])
            case "remove":
                if last not in node:
                    raise PatchFailed(f"{operation['path']} does not exist")
                del node[last]
            case "test":
                if node.get(last) != operation["value"]:
                    raise PatchFailed(f"{operation['path']} is not {operation['value']!r}")
            case other:
                raise AssertionError(other)
    return new
