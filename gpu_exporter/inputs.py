"""Parsers of what users write in flags, variables and files. Every ValueError names what would be valid."""

from __future__ import annotations

import difflib
import re
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from gpu_exporter.file_access import read
from gpu_exporter.model.metric import MetricSet, Schema

UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen; an empty host means every interface."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def address(text: str) -> Address:
    """`:9400`, `127.0.0.1:9400`, `[::1]:9400`, or a port alone."""
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or not 0 <= int(port) <= 65535:
        raise ValueError(f"{text!r} is not an address; use host:port with a port from 0 to 65535, such as :9400")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise ValueError(f"{text!r} is not an address; write an IPv6 host in brackets, such as [::1]:9400")
    return Address(host.strip("[]"), int(port))


@dataclass(frozen=True, slots=True)
class Hostengine:
    """Where DCGM's host engine listens: on a TCP address, a Unix socket, or nowhere if it runs in this process."""

    address: str = ""
    socket: str = ""

    def __str__(self) -> str:
        return (
            f"host engine at {self.socket or self.address}" if self.socket or self.address else "embedded host engine"
        )

    @property
    def embedded(self) -> bool:
        """Whether it is started in this process."""
        return not self.address and not self.socket

    @property
    def local(self) -> bool:
        """Whether its GPUs are this machine's, judging by the address."""
        return not self.address or self.address.rpartition(":")[0] in ("localhost", "127.0.0.1", "[::1]")


HOSTENGINE_PORT = 5555


def hostengine(text: str) -> Hostengine:
    """`localhost:5555`, `[::1]:5555`, `unix:///run/nv-hostengine.sock`, a socket's path; empty: embedded."""
    path = text.removeprefix("unix://")
    if path.startswith("/"):
        return Hostengine(socket=path)
    if not text:
        return Hostengine()
    wrong = f"{text!r} is no host engine; use host:port such as localhost:{HOSTENGINE_PORT}, or unix:///path/of/socket"
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+)(?::(\d+))?", text)
    if not match or not 0 < int(match[2] or HOSTENGINE_PORT) <= 65535:
        raise ValueError(wrong)
    return Hostengine(f"{match[1]}:{match[2] or HOSTENGINE_PORT}")


def duration(text: str) -> float:
    """`1s`, `100ms`, `2m`, or seconds as a plain number. Positive."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h|)", text.strip())
    if not match or not 0 < float(match[1]) < 1e9:
        raise ValueError(f"{text!r} is not a duration; use for example 1s or 100ms")
    return float(match[1]) * UNITS[match[2]]


def interval(text: str) -> float:
    """A duration from 100 ms, below which GPM windows are unreliable, to an hour."""
    seconds = duration(text)
    if not 0.1 <= seconds <= 3600:
        raise ValueError(f"{text!r} is out of range; use 100ms to 1h")
    return seconds


def hand_over(text: str) -> float:
    """A duration of at most a day, after which a node that nobody resumed is monitored again."""
    seconds = duration(text)
    if seconds > 24 * 3600:
        raise ValueError(f"{text!r} is too long; use at most 24h, and ask again")
    return seconds


@dataclass(frozen=True, slots=True)
class Devices:
    """Which devices: `kind` is f (whole GPUs, and instances if there are any), g (whole GPUs) or i (instances).

    `chosen` are numbers or UUIDs; empty means all.
    """

    kind: str = "f"
    chosen: tuple[int | str, ...] = ()

    def __str__(self) -> str:
        return f"{self.kind}:{','.join(map(str, self.chosen))}" if self.chosen else self.kind


MOST_DEVICES = 1024


def device_list(text: str) -> Devices:
    """`f`, `g`, `g:0,2-3`, `g:GPU-…`, `i`, `i:0`, as dcgm-exporter has them."""
    kind, colon, listed = (part.strip() for part in text.partition(":"))
    if kind not in ("f", "g", "i") or (kind == "f" and colon):
        raise ValueError(f"{text!r} names no devices; use f, g, i, or some such as g:0,2-3 or g:GPU-<UUID>")
    chosen: list[int | str] = []
    for part in listed.split(",") if colon else ():
        span = re.fullmatch(r"(\d{1,6})(?:\s*-\s*(\d{1,6}))?", part.strip())
        if span and int(span[1]) <= int(span[2] or span[1]) < MOST_DEVICES:
            chosen += range(int(span[1]), int(span[2] or span[1]) + 1)
        elif re.fullmatch(r"(GPU|MIG)-[0-9A-Za-z-]+", part.strip()):
            chosen.append(part.strip())
        else:
            raise ValueError(f"{part.strip()!r} is no device; use a number, a range such as 2-3, or a UUID")
    return Devices(kind, tuple(dict.fromkeys(chosen)))


def speed(text: str) -> float:
    """A positive factor."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e6:
        raise ValueError(f"{text!r} is not a speed; use a positive number such as 2")
    return value


def count(text: str) -> int:
    """A number of GPUs."""
    if not text.isdecimal():
        raise ValueError(f"{text!r} is not a number of GPUs; use for example 8")
    return int(text)


def positive(text: str) -> int:
    """A number from 1 to 9999."""
    if not text.isdecimal() or not 1 <= int(text) <= 9999:
        raise ValueError(f"{text!r} is not a number from 1 to 9999; use for example 8")
    return int(text)


def whole(text: str) -> int:
    """A whole number."""
    if not re.fullmatch(r"-?\d{1,18}", text):
        raise ValueError(f"{text!r} is not a whole number; use for example 1")
    return int(text)


def boolean(text: str) -> bool:
    """true or false, as YAML and environments write them."""
    values = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
    if text.lower() not in values:
        raise ValueError(f"{text!r} is neither true nor false")
    return values[text.lower()]


def choice(*names: str) -> Callable[[str], str]:
    """Return a parser of these names; its error on another text suggests the nearest name."""

    def parse(text: str) -> str:
        if text not in names:
            raise ValueError(f"{text!r} is not one of {', '.join(names)}{nearest(text, names)}")
        return text

    return parse


def names(text: str) -> tuple[str, ...]:
    """Names between commas."""
    return tuple(dict.fromkeys(name for item in text.split(",") if (name := item.strip())))


def patterns(text: str) -> tuple[re.Pattern[str], ...]:
    """Regular expressions between commas."""
    compiled = []
    for pattern in names(text):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # what will have another meaning in a later Python
                compiled.append(re.compile(pattern))
        except (re.error, RecursionError, OverflowError, Warning) as error:
            raise ValueError(f"{pattern!r} is not a regular expression: {error}") from error
    return tuple(compiled)


def metric_set(text: str) -> MetricSet:
    """default or full."""
    return MetricSet(choice(MetricSet.DEFAULT.value, MetricSet.FULL.value)(text))


def schema(text: str) -> Schema:
    """classic or si."""
    return Schema(choice(*(member.value for member in Schema))(text))


def nearest(name: str, names: Iterable[str]) -> str:
    """Return `; did you mean …?`, or nothing."""
    close = difflib.get_close_matches(name, list(names), 1, 0.5)
    return f"; did you mean {close[0]}?" if close else ""


MAX_FILE_BYTES = 1 << 20


def file_content(path: Path) -> bytes | str:
    """Return the content of a file, or why it cannot be read."""
    try:
        return read(path, MAX_FILE_BYTES)
    except (OSError, ValueError) as error:
        return getattr(error, "strerror", None) or str(error)
