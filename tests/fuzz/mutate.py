"""Mutations of valid inputs: of bytes, of text with numbers and tokens, and of JSON values."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

NUMBERS = (
    b"0",
    b"-1",
    b"1e308",
    b"-1e308",
    b"1e400",
    b"1e-320",
    b"NaN",
    b"Infinity",
    b"-Inf",
    b"2147483648",
    b"9223372036854775807",
    b"18446744073709551616",
    b"9" * 400,
    b"0.1" + b"0" * 300 + b"1",
    b"010",
    b"0x10",
    b"1:30",
    b"4102444800",
    b"1_000",
    b"+5",
    "٣".encode(),
)
CONTROLS = (b"\0", b"\x1b[31m", b"\x1b]0;x\x07", b"\r", b"\n", b"\x7f", b"\x85", b"\xff", b"\xc3", "\u2028".encode())
TOKENS = (b"{", b"}", b"[", b"]", b'"', b"'", b"\\", b",", b":", b"#", b"=", b" ", b"\t", b"null", b"true", b"\\ud800")
NESTS = ((b"[", b"]"), (b'{"a":', b"}"), (b"(", b")"), (b"- ", b""), (b"{a: ", b"}"))
VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    2**63,
    2**64,
    10**400,
    1e308,
    -1e308,
    float("nan"),
    float("inf"),
    4102444800,
    "",
    "x",
    "0",
    "NaN",
    "\x1b[2J\n\r\0",
    "\ud800",
    "a" * 5000,
    [],
    {},
    [[]],
    {"a": {}},
    [None],
)

Mutation = Callable[[Random, bytes, Sequence[bytes]], bytes]


def mutated(rng: Random, seeds: Sequence[bytes], tokens: Sequence[bytes], longest: int) -> bytes:
    """Return a seed after one to four mutations, cut to at most `longest` bytes."""
    content = rng.choice(seeds)
    mutations = (*MUTATIONS, *((_json,) * 6 if content[:1] in b"{[" else ()))
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4))):
        content = rng.choice(mutations)(rng, content, (*seeds, *tokens, *TOKENS))[:longest]
    return content


def _span(rng: Random, content: bytes, most: int = 200) -> slice:
    begin = rng.randrange(len(content) + 1)
    return slice(begin, min(len(content), begin + rng.randrange(1, most)))


def _replace(content: bytes, at: slice, by: bytes) -> bytes:
    return content[: at.start] + by + content[at.stop :]


def _flip(rng: Random, content: bytes, others: Sequence[bytes]) -> bytes:
    changed = bytearray(content or b"\0")
    for _ in range(rng.choice((1, 1, 2, 8))):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _cut(rng: Random, content: bytes, others: Sequence[bytes]) -> bytes:
    return content[: rng.randrange(len(content) + 1)]


def _drop(rng: Random, content: bytes, others: Sequence[bytes]) -> bytes:
    return _replace(content, _span(rng, content), b"")


def _double(rng: Random, content: bytes, others: Sequence[bytes]) -> bytes:
    at = _span(rng, content)
    return _replace(content, slice(at.stop, at.stop), content[at] * rng.choice((1, 1, 2, 50)))


def _splice(rng: Random, content: bytes, others: Sequence[bytes]) -> bytes:
    other = rng.choice(others)
    return _replace(content, _span(rng, content), other[_span(rng, other, 1000)])


def _insert(rng: Random, content: bytes, others: Sequence[bytes]) -> bytes:
    at = rng.randrange(len(content) + 1)
    return _replace(content, slice(at, at), rng.choice((*CONTROLS, *others)))


def _number(rng: Random, content: bytes, others: Sequence[bytes]) -> bytes:
    numbers = list(re.finditer(rb"-?[0-9]+(?:\.[0-9]+)?", content))
    if not numbers:
        return _insert(rng, content, NUMBERS)
    start, stop = rng.choice(numbers).span()
    return _replace(content, slice(start, stop), rng.choice(NUMBERS))


def _repeat(rng: Random, content: bytes, others: Sequence[bytes]) -> bytes:
    at = _span(rng, content, 20)
    return _replace(content, at, (content[at] or b"a") * rng.choice((100, 1000, 20_000)))


def _nest(rng: Random, content: bytes, others: Sequence[bytes]) -> bytes:
    at, (opening, closing), depth = _span(rng, content), rng.choice(NESTS), rng.choice((20, 200, 10_000))
    return _replace(content, at, opening * depth + content[at] + closing * (depth if rng.random() < 0.7 else 0))


def _line(rng: Random, content: bytes, others: Sequence[bytes]) -> bytes:
    """Drop, double or move a line."""
    lines = content.split(b"\n")
    line = lines.pop(rng.randrange(len(lines)))
    for _ in range(rng.choice((0, 1, 2))):
        lines.insert(rng.randrange(len(lines) + 1), line)
    return b"\n".join(lines)


def _json(rng: Random, content: bytes, others: Sequence[bytes]) -> bytes:
    """Change a value, a key or a size in a line of JSON; another mutation if there is none."""
    lines = content.split(b"\n")
    number = rng.randrange(len(lines))
    try:
        document = json.loads(lines[number])
    except (ValueError, RecursionError):
        return _flip(rng, content, others)
    places = list(_places(document))
    if not places:
        return _number(rng, content, others)
    holder, key = rng.choice(places)
    _change(rng, holder, key)
    try:
        lines[number] = json.dumps(document, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")
    except (ValueError, RecursionError):
        return _flip(rng, content, others)
    return b"\n".join(lines)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each dict or list with each of its keys or indexes."""
    waiting = [value]
    while waiting:
        holder = waiting.pop()
        items = holder.items() if isinstance(holder, dict) else enumerate(holder) if isinstance(holder, list) else ()
        for key, item in items:
            yield holder, key
            waiting.append(item)


def _change(rng: Random, holder: Any, key: Any) -> None:
    match rng.randrange(6):
        case 0:
            del holder[key]
        case 1 if isinstance(holder, dict):
            holder[rng.choice(("", "x" * 5000, "\x1b[31m\n", "\x00", "__class__"))] = holder.pop(key)
        case 2:
            holder[key] = [holder[key]] * rng.choice((1, 2, 300))
        case 3:
            holder[key] = {str(number): holder[key] for number in range(rng.choice((1, 2, 100)))}
        case _:
            holder[key] = rng.choice(VALUES)


MUTATIONS: tuple[Mutation, ...] = (
    _flip,
    _cut,
    _drop,
    _double,
    _splice,
    _insert,
    _number,
    _number,
    _repeat,
    _nest,
    _line,
)
