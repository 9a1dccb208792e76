"""Parses the names of kernels: demangled and mangled C++, and names of generators such as Triton.

Return types, parameters and lambdas are dropped; what remains are identifiers, which are split into words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

# Names come from files of unknown origin: what is longer or nested more deeply says nothing new.
MOST_CHARACTERS, MOST_DEPTH, MOST_ARGUMENTS = 4000, 12, 64
_OPENING, _CLOSING = "<({[", ">)}]"
_UNNAMED = re.compile(r"\(anonymous namespace\)|<unnamed>|`anonymous namespace'")
_SUFFIX = re.compile(r"\s*\[clone .*$|\.kd$|\$\d+$")
# Names of CuTe DSL go on with the types of parameters.
_CUTE_PARAMETERS = re.compile(r"_(?:object_at|tensorptr|TiledMMA|TensorSSA|Tensorgmem).*$")
# A shape such as 2d, and types of weights and activations such as w8a8, are words.
_WORD = re.compile(r"\d+[dD](?![A-Za-z])|[wa]\d+[wa](?:fp)?\d+|[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
_MANGLED_PART = re.compile(r"L(?:[a-z]|\d+[A-Za-z_]\w*?)n?\d+E|(?P<length>[1-9]\d*)|(?P<argument>I)")
# Parts of mangled and demangled names that no programmer gave.
_NO_NAME = re.compile(r"_GLOBAL__N|_INTERNAL|^operator\b|^'lambda|^lambda$")


@dataclass(frozen=True)
class KernelName:
    """The identifiers in the name of a kernel.

    `arguments` are those of template arguments, in reading order: the functor, its arguments and so on. `namespaces`
    has those of the arguments first, then those of the kernel, from the innermost to the outermost.
    """

    base: str
    arguments: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Part:
    """One part of a qualified name, with the text between its angle brackets."""

    identifier: str
    arguments: str


def parsed(name: str) -> KernelName:
    """Return the identifiers in the name of a kernel."""
    text = _CUTE_PARAMETERS.sub("", _SUFFIX.sub("", name[:MOST_CHARACTERS].strip()))
    if text.startswith("_Z") and (found := _mangled(text)):
        return found
    parts = list(_parts(_UNNAMED.sub("", text)))
    if not parts:
        return KernelName(text)
    arguments: list[str] = []
    namespaces: list[str] = []
    for part in parts:
        _add_arguments(part.arguments, arguments, namespaces, 0)
    own = [part.identifier for part in reversed(parts[:-1])]
    return KernelName(parts[-1].identifier, tuple(arguments[:MOST_ARGUMENTS]), (*namespaces[:MOST_ARGUMENTS], *own))


def words(identifier: str) -> tuple[str, ...]:
    """Return the words of an identifier in lower case, and each two and three neighbours as one word.

    LayerNorm, layer_norm and layernorm all have the word `layernorm`.
    """
    single = [word.lower() for word in _WORD.findall(identifier)]
    # What a kernel does not do, such as no_cast.
    single = [word for before, word in zip(["", *single], single, strict=False) if "no" not in (before, word)]
    return tuple(
        "".join(single[at : at + count]) for count in (1, 2, 3) for at in range(max(0, len(single) - count + 1))
    )


def _parts(text: str) -> Iterator[_Part]:
    """Yield the parts of a qualified name, without return type, parameters and lambdas."""
    found: list[_Part] = []
    identifier: list[str] = []
    arguments = ""
    at, has_parameters = 0, False

    def finish() -> None:
        plain = "".join(identifier).strip("&*")
        if plain and not _NO_NAME.search(plain) and not has_parameters:
            found.append(_Part(plain, arguments))
        identifier.clear()

    while at < len(text):
        char = text[at]
        if char in _OPENING:
            end = _closing(text, at)
            if char == "<" and not has_parameters:
                arguments = text[at + 1 : end]
            elif char == "(" and identifier:
                finish()
                arguments, has_parameters = "", True
            at = end + 1
            continue
        if text.startswith("::", at):
            finish()
            arguments, has_parameters = "", False
            at += 2
            continue
        if char.isspace() and not has_parameters and (identifier or found):  # what came before is the return type
            finish()
            found.clear()
            arguments = ""
        elif not has_parameters and not char.isspace():
            identifier.append(char)
        at += 1
    finish()
    yield from found


def _closing(text: str, start: int) -> int:
    """Return where the bracket at `start` is closed; the end of the text if nowhere."""
    depth = 0
    for at in range(start, len(text)):
        char = text[at]
        if char in _OPENING:
            depth += 1
        elif char in _CLOSING and not text.startswith("->", at - 1):
            depth -= 1
            if not depth:
                return at
    return len(text)


def _add_arguments(text: str, found: list[str], namespaces: list[str], depth: int) -> None:
    """Add the identifiers of template arguments, and their namespaces, in reading order."""
    if depth > MOST_DEPTH or len(found) > MOST_ARGUMENTS:
        return
    for argument in _split(text):
        plain = argument.strip()
        while plain.startswith("&(") and plain.endswith(")"):  # a pointer to a function
            plain = plain[2:-1].strip()
        parts = list(_parts(plain))
        if parts:
            found.append(parts[-1].identifier)
            namespaces += [part.identifier for part in parts[:-1]]
        for part in parts:
            if part.arguments:
                _add_arguments(part.arguments, found, namespaces, depth + 1)


def _split(text: str) -> Iterator[str]:
    """Yield what commas outside of brackets separate."""
    start = at = 0
    while at < len(text):
        if text[at] in _OPENING:
            at = _closing(text, at)
        elif text[at] == ",":
            yield text[start:at]
            start = at + 1
        at += 1
    yield text[start:]


def _mangled(text: str) -> KernelName | None:
    """Return the identifiers of a name as C++ compilers write it, which may be cut off."""
    qualified: list[str] = []
    arguments: list[str] = []
    at = 2
    names = qualified
    while at < len(text) and len(arguments) < MOST_ARGUMENTS:
        match = _MANGLED_PART.match(text, at)
        if not match:
            at += 1
            continue
        at = match.end()
        if match["argument"] and qualified:
            names = arguments
        elif match["length"]:
            identifier = text[at : at + int(match["length"])]
            if _IDENTIFIER.fullmatch(identifier):
                at += len(identifier)
                if not _NO_NAME.search(identifier):
                    names.append(identifier)
        if names is qualified and qualified and not text.startswith("_ZN"):
            names = arguments
    return KernelName(qualified[-1], tuple(arguments), tuple(reversed(qualified[:-1]))) if qualified else None
