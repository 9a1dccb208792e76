"""Decoding of untrusted YAML: its size, depth and types are checked before anything uses it.

Every function raises ValueError with one line that says what is wrong, without quoting the content at length. The
parser needs a MiB and a tenth of the time of a start: import this module only when there is something to decode.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, get_args, get_type_hints

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from gpu_exporter.io.decoding import PREPARING, printable

T = TypeVar("T")

# PyYAML needs up to a second for as much as this; settings, passwords and changed XIDs are far less.
MOST_YAML_BYTES = 1 << 18
MOST_YAML_NODES = 10_000
MOST_YAML_DEPTH = 50
# What msgspec calls the types of YAML.
_TYPES = {
    "object": "a mapping of keys to values",
    "array": "a list",
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "null": "empty",
}


def yaml_as(kind: type[T], content: bytes | str) -> T:
    """Decode YAML as `kind`, a dataclass. Unknown keys are errors, and so are values of other types."""
    import msgspec

    document = yaml_document(content)
    try:
        with PREPARING:
            value = msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise ValueError(printable(_in_words(str(error), kind), 200)) from None
    _check_keys(document, msgspec.to_builtins(value), "")
    return value


def _in_words(error: str, kind: Any) -> str:
    """Return what msgspec says of a value, as `place: what is wrong and what it has to be`."""
    what, _, place = error.partition(" - at `$")
    place = place.strip("`.")
    if found := re.fullmatch(r"Expected `(.+)`, got `(.+)`", what):
        wanted, given = (" or ".join(_TYPES.get(name, name) for name in names.split(" | ")) for names in found.groups())
        what = f"must be {wanted}, not {given}"
    elif found := re.fullmatch(r"Object missing required field `(.+)`", what):
        what = f"{found[1]} is missing; add it"
    elif found := re.fullmatch(r"Invalid enum value (.+)", what):
        for name in re.findall(r"[a-z_]+", place):
            kind = get_type_hints(kind)[name]
            kind = (*get_args(kind), kind)[0]
        what = f"{found[1]} is not one of {', '.join(str(each.value) for each in kind)}"
    return f"{place}: {what}" if place else what


def _check_keys(given: Any, known: Any, where: str) -> None:
    """Raise ValueError for a key of `given` that `known` does not have."""
    if isinstance(given, dict) and isinstance(known, dict):
        for key, value in given.items():
            if key not in known:
                raise ValueError(f"{printable(f'{where}{key}', 80)}: unknown key; use {', '.join(known)}")
            _check_keys(value, known[key], f"{where}{key}.")
    elif isinstance(given, list) and isinstance(known, (list, tuple)):
        for place, (value, parsed) in enumerate(zip(given, known, strict=True)):
            _check_keys(value, parsed, f"{where.rstrip('.')}[{place}].")


def yaml_document(content: bytes | str) -> Any:
    """Decode YAML 1.1: booleans such as `yes` and `on` and anchors keep their meaning.

    A duplicate key, aliases that expand to too much, and a number that YAML 1.1 reads in base 8 or 60 are errors.
    """
    return _composed(content, _constructed)


def yaml_root(content: bytes | str) -> Node | None:
    """Return the root node of YAML, or None if it is empty: nodes know their lines, and scalars the text as written.

    Whatever `yaml_document` refuses about nodes is an error here, too.
    """
    return _composed(content, lambda _, root: root)


def _composed(content: bytes | str, use: Callable[[_Loader, Node], T]) -> T | None:
    """Return what `use` makes of a checked root node, or None if there is no document."""
    if len(content) > MOST_YAML_BYTES:
        raise ValueError(f"larger than {MOST_YAML_BYTES >> 10} KiB")
    loader = None
    try:
        loader = _Loader(content)
        root = loader.get_single_node()
        if root is None:
            return None
        _check(root)
        return use(loader, root)
    except yaml.MarkedYAMLError as error:  # its text would quote the file, which may contain secrets
        mark = error.problem_mark or error.context_mark
        raise ValueError(f"not YAML{f' in line {mark.line + 1}' if mark else ''}: {_problem(error)}") from None
    except yaml.reader.ReaderError as error:
        raise ValueError(f"not YAML: {error.reason} at position {error.position}") from None
    except RecursionError:
        raise ValueError("not YAML: nested too deeply") from None
    finally:
        if loader:
            loader.dispose()


class _Loader(yaml.SafeLoader):
    """PyYAML's parser in Python, with limits on size and depth. The one in C words its errors differently."""

    nodes = depth = 0

    def compose_node(self, parent: Node | None, index: int) -> Node | None:
        """Compose a node and count it: what is too large is not parsed to its end, which would take seconds."""
        self.nodes += 1
        if self.nodes > MOST_YAML_NODES:
            raise ValueError(f"more than {MOST_YAML_NODES} values")
        if self.depth > MOST_YAML_DEPTH:
            raise ValueError("nested too deeply")
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


def _constructed(loader: _Loader, root: Node) -> Any:
    try:
        return loader.construct_document(root)
    except (ValueError, LookupError, AttributeError, TypeError, OverflowError) as error:
        # PyYAML raises any of these for a wrong value of an explicit type, such as `!!bool x`
        raise ValueError(f"not YAML: a value does not have its type: {printable(str(error), 120)}") from None


def _problem(error: yaml.MarkedYAMLError) -> str:
    return printable(re.sub(r"'(?!<)[^']{2,}'", "'…'", error.problem or "cannot be parsed"), 120)


def _check(root: Node) -> None:
    """Raise ValueError for valid YAML that misleads: duplicate keys, expanding aliases, octal and base 60 numbers."""
    sizes: dict[int, int] = {}

    def size(node: Node, depth: int) -> int:
        if depth > MOST_YAML_DEPTH:
            raise ValueError("nested too deeply, or an alias contains itself")
        if id(node) not in sizes:
            sizes[id(node)] = 1 + sum(size(child, depth + 1) for child in _children(node))
            if sizes[id(node)] > MOST_YAML_NODES:
                raise ValueError(f"its aliases expand to more than {MOST_YAML_NODES} values")
        return sizes[id(node)]

    size(root, 0)


def _children(node: Node) -> Iterator[Node]:
    """Yield the children of a node. Raises ValueError for a duplicate key or a misleading number."""
    if isinstance(node, ScalarNode):
        _check_scalar(node)
    elif isinstance(node, SequenceNode):
        yield from node.value
    elif isinstance(node, MappingNode):
        names = set()
        for key, value in node.value:
            if isinstance(key, ScalarNode):
                if key.value in names and key.value != "<<":
                    where = f"line {key.start_mark.line + 1}: {printable(key.value, 60)}"
                    raise ValueError(f"{where} is a duplicate key; keep one")
                names.add(key.value)
            yield from (key, value)


def _check_scalar(node: ScalarNode) -> None:
    numeric = node.tag in ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
    if numeric and re.fullmatch(r"[-+]?(0[0-7_]+|[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?)", node.value):
        base = "a base 60" if ":" in node.value else "an octal"
        where = f"line {node.start_mark.line + 1}: {printable(node.value, 40)}"
        raise ValueError(f"{where} is {base} number in YAML; put it in quotes if it is text")
