"""Parsers of what users write in flags, variables and files. Every ValueError says what is valid."""

from __future__ import annotations

import ipaddress
import re
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TypeAlias

from gpu_exporter.io.decoding import printable
from gpu_exporter.io.file_access import read
from gpu_exporter.model.metric import MetricSet, Schema
from gpu_exporter.model.profile_reason import AUTOMATIC, ProfileReason

UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen; an empty host means every interface."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def address(text: str) -> Address:
    """Parse `:9400`, `127.0.0.1:9400`, `[::1]:9400`, or a port alone."""
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or not 0 <= int(port) <= 65535:
        raise ValueError(f"{quoted(text)} is not an address; use host:port with a port from 0 to 65535, such as :9400")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise ValueError(f"{quoted(text)} is not an address; write an IPv6 host in brackets, such as [::1]:9400")
    return Address(host.strip("[]"), int(port))


@dataclass(frozen=True, slots=True)
class Hostengine:
    """Where DCGM's host engine listens: a TCP address or a Unix socket. Both are empty if it runs in this process."""

    address: str = ""
    socket: str = ""

    def __str__(self) -> str:
        return (
            f"host engine at {self.socket or self.address}" if self.socket or self.address else "embedded host engine"
        )

    @property
    def embedded(self) -> bool:
        """Whether the exporter starts it in its own process."""
        return not self.address and not self.socket

    @property
    def local(self) -> bool:
        """Whether its GPUs are those of this machine, judging by the address."""
        return not self.address or self.address.rpartition(":")[0] in ("localhost", "127.0.0.1", "[::1]")


HOSTENGINE_PORT = 5555


def hostengine(text: str) -> Hostengine:
    """Parse `localhost:5555`, `[::1]:5555`, `unix:///run/nv-hostengine.sock` or a socket's path; empty: embedded."""
    path = text.removeprefix("unix://")
    if path.startswith("/"):
        return Hostengine(socket=path)
    if not text:
        return Hostengine()
    wrong = f"{quoted(text)} is not a host engine; use host:port such as localhost:{HOSTENGINE_PORT}, or unix:///path/of/socket"
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+)(?::(\d+))?", text)
    if not match or not 0 < int(match[2] or HOSTENGINE_PORT) <= 65535:
        raise ValueError(wrong)
    return Hostengine(f"{match[1]}:{match[2] or HOSTENGINE_PORT}")


def path_or_none(text: str) -> Path | None:
    """Return a path; None for `none`, or without any."""
    return None if text in ("", "none") else Path(text)


def duration(text: str) -> float:
    """Parse `1s`, `100ms`, `2m`, or seconds as a plain number. Returns positive seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h|)", text.strip())
    if not match or not 0 < float(match[1]) < 1e9:
        raise ValueError(f"{quoted(text)} is not a duration; use for example 1s or 100ms")
    return float(match[1]) * UNITS[match[2]]


def moment(text: str, now: float) -> float:
    """Parse a time: ISO 8601 (local time without a zone), unix seconds, or a duration before `now`. Returns unix
    seconds."""
    text = text.strip()
    with suppress(ValueError):
        if re.fullmatch(r"\d{9,11}(\.\d+)?", text):
            return float(text)
        if re.fullmatch(r"\d+(\.\d+)?d", text):
            return now - float(text[:-1]) * 86400
        return now - duration(text)
    try:
        return datetime.fromisoformat(re.sub(r"Z$", "+00:00", text)).timestamp()
    except (ValueError, OverflowError, OSError):
        raise ValueError(f"{quoted(text)} is not a time; use for example 24h, 7d or 2026-01-31T08:00") from None


def past(since: str, until: str, now: float) -> tuple[float, float]:
    """Parse a period of the past, until `now` if `until` is empty. Returns its begin and end in unix seconds."""
    begin, end = moment(since, now), moment(until, now) if until else now
    if begin >= end:
        raise ValueError(f"{quoted(since)} is not before {quoted(until) if until else 'now'}")
    return begin, end


def interval(text: str) -> float:
    """Parse a duration from 100 ms to 1 h. Shorter windows of GPM are unreliable."""
    seconds = duration(text)
    if not 0.1 <= seconds <= 3600:
        raise ValueError(f"{quoted(text)} is out of range; use 100ms to 1h")
    return seconds


def ratio(text: str) -> float:
    """Parse a share: `5%` or `0.05`, from 0 to 1."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?|\.\d+)(%?)", text.strip())
    value = float(match[1]) / (100 if match[2] else 1) if match else -1.0
    if not 0 <= value <= 1:
        raise ValueError(f"{quoted(text)} is not a ratio; use for example 5% or 0.05, at most 100%")
    return value


def release_duration(text: str) -> float:
    """Parse a duration of at most a day, after which the exporter resumes on its own."""
    seconds = duration(text)
    if seconds > 24 * 3600:
        raise ValueError(f"{quoted(text)} is too long; use at most 24h, and repeat the command to extend it")
    return seconds


@dataclass(frozen=True, slots=True)
class Devices:
    """A choice of devices. `kind` is f (whole GPUs, and instances if there are any), g (whole GPUs) or i (instances).

    `chosen` are numbers or UUIDs; empty means all.
    """

    kind: str = "f"
    chosen: tuple[int | str, ...] = ()

    def __str__(self) -> str:
        return f"{self.kind}:{','.join(map(str, self.chosen))}" if self.chosen else self.kind


MOST_DEVICES = 1024


def device_list(text: str) -> Devices:
    """Parse `f`, `g`, `g:0,2-3`, `g:GPU-…`, `i` or `i:0`, as dcgm-exporter does."""
    kind, colon, listed = (part.strip() for part in text.partition(":"))
    if kind not in ("f", "g", "i") or (kind == "f" and colon):
        raise ValueError(f"{quoted(text)} is not a device list; use f, g, i, or for example g:0,2-3 or g:GPU-<UUID>")
    chosen: list[int | str] = []
    for part in listed.split(",") if colon else ():
        span = re.fullmatch(r"(\d{1,6})(?:\s*-\s*(\d{1,6}))?", part.strip())
        if span and int(span[1]) <= int(span[2] or span[1]) < MOST_DEVICES:
            chosen += range(int(span[1]), int(span[2] or span[1]) + 1)
        elif re.fullmatch(r"(GPU|MIG)-[0-9A-Za-z-]+", part.strip()):
            chosen.append(part.strip())
        else:
            raise ValueError(f"{quoted(part.strip())} is not a device; use a number, a range such as 2-3, or a UUID")
    return Devices(kind, tuple(dict.fromkeys(chosen)))


def speed(text: str) -> float:
    """Parse a positive factor."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e6:
        raise ValueError(f"{quoted(text)} is not a speed; use a positive number such as 2")
    return value


def count(text: str) -> int:
    """Parse a number of GPUs, which has at most four digits."""
    if not text.isdecimal() or len(text) > 4:
        raise ValueError(f"{quoted(text)} is not a number of GPUs; use for example 8")
    return int(text)


def positive(text: str) -> int:
    """Parse a number from 1 to 9999."""
    if not text.isdecimal() or not 1 <= int(text) <= 9999:
        raise ValueError(f"{quoted(text)} is not a number from 1 to 9999; use for example 8")
    return int(text)


def whole(text: str) -> int:
    """Parse a whole number."""
    if not re.fullmatch(r"-?\d{1,18}", text):
        raise ValueError(f"{quoted(text)} is not a whole number; use for example 1")
    return int(text)


def boolean(text: str) -> bool:
    """Parse true, yes, on, 1, false, no, off or 0."""
    values = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
    if text.lower() not in values:
        raise ValueError(f"{quoted(text)} is neither true nor false; use true or false")
    return values[text.lower()]


def choice(*names: str) -> Callable[[str], str]:
    """Return a parser of these names, whose error suggests the nearest name."""

    def parse(text: str) -> str:
        if text not in names:
            listed = printable(", ".join(names), 200)
            raise ValueError(f"{quoted(text)} is not one of {listed}{nearest(text, names)}")
        return text

    return parse


def names(text: str) -> tuple[str, ...]:
    """Parse names separated by commas."""
    return tuple(dict.fromkeys(name for item in text.split(",") if (name := item.strip())))


def reasons(text: str) -> frozenset[ProfileReason]:
    """Parse reasons to profile, separated by commas."""
    parse = choice(*(reason.value for reason in AUTOMATIC))
    return frozenset(ProfileReason(parse(name)) for name in names(text))


Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network


def networks(text: str) -> tuple[Network, ...]:
    """Parse IP addresses and networks, such as 10.0.0.1 or 10.0.0.0/8, separated by commas."""
    parsed = []
    for name in names(text):
        try:
            parsed.append(ipaddress.ip_network(name))
        except ValueError as error:
            raise ValueError(
                f"{quoted(name)} is not an IP address or network; use for example 10.0.0.1 or 10.0.0.0/8"
            ) from error
    return tuple(parsed)


def patterns(text: str) -> tuple[re.Pattern[str], ...]:
    """Parse regular expressions separated by commas."""
    compiled = []
    for pattern in names(text):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # a later Python will read such a pattern differently
                compiled.append(re.compile(pattern))
        except (re.error, RecursionError, OverflowError, Warning) as error:
            raise ValueError(f"{quoted(pattern)} is not a regular expression: {error}") from error
    return tuple(compiled)


def metric_set(text: str) -> MetricSet:
    """Parse default or full."""
    return MetricSet(choice(MetricSet.DEFAULT.value, MetricSet.FULL.value)(text))


def schema(text: str) -> Schema:
    """Parse classic or si."""
    return Schema(choice(*(member.value for member in Schema))(text))


# How similar a name must be to be suggested, from 0 to 1: `repaly` is 0.83 of `replay`, but `foo` only 0.57 of `loop`.
NEAR = 0.7


def near(name: str, names: Iterable[str]) -> str:
    """Return the name that was probably meant, or an empty text if none is similar."""
    import difflib  # only a mistake needs it

    return next(iter(difflib.get_close_matches(name, list(names), 1, NEAR)), "")


def quoted(text: str) -> str:
    """Return what a user wrote in quotes, as one line of limited length."""
    return printable(repr(text), 80)


def nearest(name: str, names: Iterable[str]) -> str:
    """Return `; did you mean …?`, or an empty text if no name is similar."""
    close = near(name, names)
    return f"; did you mean {close}?" if close else ""


MAX_FILE_BYTES = 1 << 20


def file_content(path: Path) -> bytes | str:
    """Return the content of a file, or why it cannot be read."""
    try:
        return read(path, MAX_FILE_BYTES)
    except (OSError, ValueError) as error:
        return getattr(error, "strerror", None) or str(error)


def web_url(text: str) -> str:
    """Return the address of a web page without a slash at its end."""
    if text and not re.fullmatch(r"https?://[^\s\"'<>]+", text):
        raise ValueError("does not begin with http:// or https://")
    return text.rstrip("/")
