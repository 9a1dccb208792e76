"""A real VictoriaMetrics as a child process, and what is written to it. Shared by tests and benchmarks."""

from __future__ import annotations

import json
import struct
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import Request, urlopen

from tests.support.tools import NEWER, free_port, tool, until

# The look-back of Prometheus; by default, VictoriaMetrics derives one from the distance of the samples.
LOOK_BACK = "-search.maxLookback=5m"
# Ends a series: Prometheus' marker is a NaN of its own.
STALE = b"\x02\x00\x00\x00\x00\x00\xf0\x7f"
# Labels and samples: (milliseconds, value), or None for the end of the series.
Labels = Mapping[str, str]
Samples = Sequence[tuple[int, float | None]]


@dataclass(frozen=True, slots=True)
class Victoria:
    """A running VictoriaMetrics."""

    pid: int
    url: str

    def api(self, path: str, **parameters: str) -> Any:
        """Return the `data` of a response. Raises HTTPError if the query is refused."""
        with urlopen(f"{self.url}/api/v1/{path}?{urlencode(parameters)}", timeout=120) as answer:
            return json.loads(answer.read())["data"]

    def flush(self) -> None:
        """Make written samples visible to queries."""
        with urlopen(f"{self.url}/internal/force_flush", timeout=60):
            pass

    def write(self, series: Iterable[tuple[Labels, Samples]]) -> None:
        """Write samples as Prometheus' remote write does."""
        batch, encoded, before = bytearray(), b"", None
        for labels, samples in series:
            if samples is not before:  # copies of a series share them
                encoded, before = _samples(samples), samples
            batch += _field(1, _labels(labels) + encoded)
            if len(batch) > 1 << 22:
                self._send(bytes(batch))
                batch.clear()
        self._send(bytes(batch))
        self.flush()

    def _send(self, batch: bytes) -> None:
        headers = {"Content-Encoding": "snappy", "Content-Type": "application/x-protobuf"}
        with urlopen(Request(f"{self.url}/api/v1/write", _snappy(batch), headers), timeout=60):
            pass


@contextmanager
def victoria(folder: Path, *options: str, program: Path | None = None) -> Iterator[Victoria]:
    """Run a VictoriaMetrics with its data in `folder`. `program` replaces that of `make tools`."""
    address = f"127.0.0.1:{free_port()}"
    command = [
        str(program or tool("victoria-metrics")),
        f"-storageDataPath={folder / 'store'}",
        f"-httpListenAddr={address}",
        "-search.latencyOffset=0s",
        "-search.disableCache",
        "-retentionPeriod=100y",
        LOOK_BACK,
        *options,
    ]
    with running(command, folder / "victoria.log", f"http://{address}/health") as pid:
        yield Victoria(pid, f"http://{address}")


@contextmanager
def vmalert(
    folder: Path, store: str, rules: Iterable[Path], prefix: Sequence[str] = (), *, written: str = ""
) -> Iterator[tuple[int, str]]:
    """Evaluate rules on a store, with the flags of docs/scale.md; yield the process id and the URL of metrics.

    `written` is where it writes, if that is not where it reads, as in a cluster.
    """
    address = f"127.0.0.1:{free_port()}"
    command = [
        *prefix,
        str(NEWER / "vmalert"),  # keep_firing_for needs one that Debian 12 does not have
        *(f"-rule={path}" for path in rules),
        f"-datasource.url={store}",
        f"-remoteWrite.url={written or store}",
        "-remoteWrite.flushInterval=500ms",
        "-remoteWrite.maxQueueSize=1000000",
        f"-remoteRead.url={store}",
        "-notifier.blackhole",
        "-disableAlertgroupLabel",
        "-evaluationInterval=30s",
        f"-httpListenAddr={address}",
    ]
    with running(command, folder / "vmalert.log", f"http://{address}/health") as pid:
        yield pid, f"http://{address}/metrics"


@contextmanager
def running(command: Sequence[str], log: Path, health: str) -> Iterator[int]:
    """Run a program until the block ends; yield its process id when `health` answers."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)

    def healthy() -> bool:
        assert process.poll() is None, f"{command[0]} ended: {log.read_text()[-2000:]}"
        try:
            with urlopen(health, timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    try:
        until(healthy, 30, f"the start of {Path(command[0]).name}")
        yield process.pid
    finally:
        process.kill()
        process.wait()


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def _field(number: int, content: bytes) -> bytes:
    """Return a field of a protobuf message that has a length."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _labels(labels: Labels) -> bytes:
    return b"".join(
        _field(1, _field(1, name.encode()) + _field(2, value.encode()))
        for name, value in sorted(labels.items())
        if value
    )


def _samples(samples: Samples) -> bytes:
    found = []
    for at, value in samples:
        number = STALE if value is None else struct.pack("<d", value)
        found.append(_field(2, b"\x09" + number + b"\x10" + _varint(at)))
    return b"".join(found)


def _snappy(content: bytes) -> bytes:
    """Return content in snappy's format, as literals: remote write requires the format, not that it is shorter."""
    parts = [_varint(len(content))]
    for start in range(0, len(content), 1 << 16):
        part = content[start : start + (1 << 16)]
        parts.append(b"\xf4" + struct.pack("<H", len(part) - 1) + part)
    return b"".join(parts)
